"""transformers with accelerate's weight offload. Settings: `offload`, `cpu` or `disk`."""

import tempfile

import accelerate
from peers.measuring import Task, main
from peers.transformers import Model


class OffloadedModel(Model):
    """A model whose weights wait in a state dictionary, or in files, until a module needs them."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.versions = {"accelerate": accelerate.__version__, **self.versions}
        if task.settings["offload"] == "cpu":
            accelerate.cpu_offload(self.model, execution_device="cpu")
            return
        self._folder = tempfile.TemporaryDirectory()
        accelerate.disk_offload(self.model, self._folder.name, execution_device="cpu")


if __name__ == "__main__":
    main(OffloadedModel)
