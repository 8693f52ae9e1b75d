"""Templates: what transformers renders, and every attack that a model's file could hold."""

import asyncio
import json
import threading
import tracemalloc
from contextlib import contextmanager

import pytest
import transformers

from pyvllm.errors import FormatError, InvalidArgument
from pyvllm.tokenizer.chat_template import MAX_MESSAGES, ChatTemplate, Deadline
from pyvllm.tokenizer.chat_template_files import load_chat_templates

USER = [{"role": "user", "content": "hi"}]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
LEN = 4096
#: So far away that only a count can refuse a template before it.
FAR = Deadline(cpu_s=100, wall_s=200)


def render(source, messages=USER, **more):
    return ChatTemplate(source, TOKENS, deadline=FAR).render(messages, LEN, **more)


@contextmanager
def little_memory():
    """Hold what is allocated inside to 32 MiB at a time, on whatever thread."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 32 * 2**20
    finally:
        tracemalloc.stop()


REFUSED = [
    "{{ ''.__class__.__mro__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ lipsum(n=100000) }}",
    "{{ self.__init__.__globals__ }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(x=1) }}",
    "{{ range(10**9) }}",
    "{% for i in range(100001) %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{{ range(-9223372036854775807, 9223372036854775807) }}",
    "{{ 'a' * 10**10 }}",
    "{{ 'a' * 10000000000 }}",
    "{{ [0] * 10000000000 }}",
    "{{ 9 ** 9 }}",
    "{{ 9**(9**9) }}",
    "{{ '%10000000000d' % 1 }}",
    "{{ 'x'.center(10000000000) }}",
    "{{ 'x'.ljust(10000000000) }}",
    "{{ 'x'.rjust(10000000000) }}",
    "{{ 'x'.zfill(10000000000) }}",
    "{{ '\t'.expandtabs(10000000000) }}",
    "{{ '{:>10000000000}'.format(1) }}",
    "{{ '{x:>10000000000}'.format_map({'x': 1}) }}",
    "{{ 'x'.translate({}) }}",
    "{{ 'x'.encode().center(10000000000) }}",
    "{{ (5).to_bytes(10000000000) }}",
    "{{ strftime_now('%10000000000d') }}",
    "{{ strftime_now('%-1000000000d' ~ '%1000000000d') }}",
    "{{ messages | tojson(indent=1000000000) }}",
    "{{ [[1], [2]] | sum(start=[]) }}",
    "{% include 'x' %}",
    "{% import 'x' as y %}",
    "{% set ns = namespace(n=3) %}{% for i in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}{{ ns.n }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% for i in range(99999) %}" + "x" * 1000 + "{% endfor %}",
    "{% set ns = namespace(t='xx') %}{% for i in range(60) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}",
    "{% set ns = namespace(t='xx') %}{% for i in range(60) %}{% set ns.t = ns.t + ns.t %}{% endfor %}",
    "{% set ns = namespace(t=['x']) %}{% for i in range(60) %}{% set ns.t = ns.t + ns.t %}{% endfor %}",
    "{% set ns = namespace(t='xx') %}{% for i in range(60) %}{% set ns.t = [ns.t, ns.t] | join %}{% endfor %}",
    "{% set ns = namespace(t='xx') %}{% for i in range(60) %}{% set ns.t = ''.join([ns.t, ns.t]) %}{% endfor %}",
    "{% set ns = namespace(t='xx') %}{% for i in range(60) %}{% set ns.t = ns.t.replace('x', 'xx') %}{% endfor %}",
    "{% set ns = namespace(t='xx') %}{% for i in range(60) %}{% set ns.t = ns.t | replace('x', 'xx') %}{% endfor %}",
    "{% set ns = namespace(t='xx') %}{% for i in range(60) %}"
    "{% set x %}{{ ns.t }}{{ ns.t }}{% endset %}{% set ns.t = x %}{% endfor %}",
    "{% set ns = namespace(t='xx') %}{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}{% for i in range(60) %}"
    "{% set ns.t = f(ns.t) %}{% endfor %}",
    "{% set ns = namespace(l=[]) %}{% set t = 'x' * 1 ~ messages | tojson %}{% for i in range(99999) %}"
    "{% set ns.l = ns.l + [t[1:]] %}{% endfor %}",
]
#: Lists that hold one another twice: small in memory, without end for whoever writes or compares them.
DOUBLED = "{% set ns = namespace(l=['x'], m=['x']) %}{% for i in range(60) %}{% set ns.l = MADE %}{% endfor %}"
REFUSED += [
    DOUBLED.replace("MADE", made)
    for made in (
        "[ns.l, ns.l]", "(ns.l, ns.l)", "{'a': ns.l, 'b': ns.l}", "dict(a=ns.l, b=ns.l)", "[ns.l + ns.l]",
        "{'a': ns.l, 'b': ns.l}.items() | list", "[ns.l] + [ns.l]", "{(ns.l, ns.l): 1}",
    )
]  # fmt: skip
REFUSED += [
    "{% set big = range(90000) | list %}{{ range(50) | map('string') | map('default', big) | list }}"
    "{{ [big, big] == [big, big] }}",
    "{% set big = range(90000) | list %}{{ [none, none] | map('default', big, true) | list }}",
]
#: What Jinja's filters would pad or repeat; they are not there at all.
REMOVED = ["center", "format", "pprint", "indent", "wordwrap", "xmlattr", "batch", "slice", "round", "urlize", "attr"]


@pytest.mark.parametrize("source", REFUSED)
def test_attack_is_refused_by_a_count_and_not_by_the_clock_in_little_memory(source):
    with little_memory(), pytest.raises((InvalidArgument, FormatError)) as refused:
        render(source)
    assert "takes longer" not in str(refused.value)


@pytest.mark.parametrize("name", REMOVED)
def test_filter_that_pads_or_repeats_is_not_there(name):
    with pytest.raises(FormatError, match=f"No filter named '{name}'"):
        render(f"{{{{ 'x' | {name} }}}}")
    with pytest.raises(InvalidArgument, match="No filter named"):
        render(f"{{{{ ['x'] | map('{name}') | list }}}}")


def test_attribute_filter_cannot_reach_an_internal():
    assert render("{{ [''] | map(attribute='__class__') | list }}") == "[Undefined]"
    assert render("{{ ''['__class__'] is defined }}") == "False"


def test_nothing_is_computed_while_a_template_is_compiled():
    source = "{{ ('" + "a" * 100_000 + "' | replace('a', '" + "b" * 100_000 + "')) }}"
    with little_memory():
        template = ChatTemplate(source, TOKENS, deadline=FAR)
        with pytest.raises(InvalidArgument, match="makes a text of more than"):
            template.render(USER, LEN)


LOOPS = "".join(f"{{% for m{i} in messages %}}" for i in range(4)) + "{% endfor %}" * 4


def test_loops_without_end_are_stopped_at_the_deadline():
    template = ChatTemplate(LOOPS, {}, deadline=Deadline(cpu_s=0.2))
    with pytest.raises(InvalidArgument, match=r"takes longer than 0\.2 s"):
        template.render(USER * 200, LEN)
    # On a busy machine a thread that was stopped may need a while to get to its end.
    for thread in threading.enumerate():
        if thread.name == "vllm-template":
            thread.join(60)
            assert not thread.is_alive()
    assert template.render(USER, LEN) == ""


def test_a_template_cannot_hold_the_deadline_back():
    source = "{% macro f(x) %}{{ f(x) | default('a', true) }}{% endmacro %}" + LOOPS.replace("{% endfor %}", "", 0)
    with pytest.raises(InvalidArgument, match="takes longer"):
        ChatTemplate(source, {}, deadline=Deadline(cpu_s=0.2)).render(USER * 200, LEN)


def test_the_event_loop_never_renders():
    template = ChatTemplate("x", {})

    async def on_the_loop():
        with pytest.raises(RuntimeError, match="event loop"):
            template.render(USER, LEN)
        return await asyncio.to_thread(template.render, USER, LEN)

    assert asyncio.run(on_the_loop()) == "x"


def test_inputs_are_capped_and_copied():
    with pytest.raises(InvalidArgument, match=f"1 to {MAX_MESSAGES} messages, got {MAX_MESSAGES + 1}"):
        render("x", USER * (MAX_MESSAGES + 1))
    with pytest.raises(InvalidArgument, match="1 to 1024 messages, got 0"):
        render("x", [])
    with pytest.raises(FormatError, match="more than 262144 bytes"):
        ChatTemplate("x" * 262_145, {})
    with pytest.raises(InvalidArgument, match="plain values, found object"):
        render("x", [{"role": object()}])
    deep = []
    for _ in range(100):
        deep = [deep]
    with pytest.raises(InvalidArgument, match="nested more than 64"):
        render("x", [{"content": deep}])


class Shouting(str):
    def upper(self):
        raise AssertionError("a template reached an object of the caller")


def test_a_template_sees_plain_values_only():
    assert render("{{ messages[0].content.upper() }}", [{"content": Shouting("a")}]) == "A"


def test_output_is_bounded_by_the_models_length():
    template = ChatTemplate("{{ messages[0].content }}", {})
    assert template.render([{"content": "x" * 160}], 10) == "x" * 160
    with pytest.raises(InvalidArgument, match="more than 160 characters"):
        template.render([{"content": "x" * 161}], 10)


def test_only_the_documented_names_exist():
    names = "messages tools documents add_generation_prompt bos_token eos_token raise_exception strftime_now namespace"
    source = "{% for n in [messages, documents, tools, add_generation_prompt, bos_token, eos_token, raise_exception, "
    assert render(source + "strftime_now, namespace, range] %}{{ n is defined }} {% endfor %}") == "True " * 10
    for name in ("cycler", "joiner", "lipsum", "config", "request", "environment", "context"):
        assert name not in names
        assert render(f"{{{{ {name} is defined }}}}") == "False"


def test_what_the_template_itself_refuses_is_said():
    with pytest.raises(InvalidArgument, match="refuses these messages: roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize("source", ["{% if %}", "{{ x", "{% for a in b %}", "{{ " + "(" * 5000 + " }}"])
def test_a_template_that_is_none_is_a_format_error(source):
    with pytest.raises(FormatError, match=r"tokenizer_config\.json: the chat template cannot be compiled"):
        ChatTemplate(source, {}, "tokenizer_config.json")


CONVERSATIONS = [
    USER,
    [{"role": "system", "content": "Be brief."}, *USER, {"role": "assistant", "content": "yes\n"}, *USER],
    [{"role": "user", "content": "ünï 漢字 <|im_end|> \t"}],
]
#: Constructs of published templates: namespaces, loop controls, reversed slices, macros, tojson, generation tags.
SOURCES = [
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>' + m.content | trim }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "{%- set ns = namespace(last=0) %}{%- for m in messages[::-1] %}"
    "{%- set i = (messages | length - 1) - loop.index0 %}{%- if m.role == 'user' %}{%- set ns.last = i %}"
    "{% break %}{%- endif %}{%- endfor %}{{ ns.last }}",
    "{% macro f(m) -%}\n  {{ m | tojson(indent=2) }}\n{%- endmacro %}\n  {% for m in messages %}\n{{ f(m) }}\n"
    "{% endfor %}\n",
    "{% for m in messages %}{% if loop.first and m.role == 'system' %}{% continue %}{% endif %}"
    "{% generation %}{{ m.content.split('\n')[-1].lstrip('x').strip() ~ eos_token }}{% endgeneration %}{% endfor %}",
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(', ') }}",
    "{% set s = {'a': 1} %}{% for k, v in s | dictsort %}{{ k ~ v }}{% endfor %}{{ '%s' | replace('%s', 'x') }}",
    "{{ messages }}{{ [1, 'a', none, 2.5, (true,), {'k': []}, ()] }}{{ 'x' ~ [1] ~ none }}{{ [[1]] | join('-') }}"
    "{{ (1, 2) | string }}{% for k, v in {'a': 1}.items() %}{{ k, v }}{% endfor %}{{ missing }}{{ [missing] }}",
    "{{ (messages | length) % 2 == 0 }}{{ 7 * 6 }}{{ [1] + [2] }}{{ 'a' + 'b' }}{{ 3 // 2 - 1 }}",
]


@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("source", SOURCES)
def test_a_normal_template_is_rendered_as_transformers_does(source, messages):
    from transformers.utils.chat_template_utils import render_jinja_template

    [[expected], _] = render_jinja_template([messages], chat_template=source, add_generation_prompt=True, **TOKENS)
    assert render(source, messages) == expected


def test_smollm2s_template_is_rendered_as_transformers_does(smollm2_gguf):
    from pyvllm.model_loader.checkpoint import open_model

    metadata = open_model(str(smollm2_gguf)).gguf_metadata
    template = load_chat_templates(None, metadata).choose(False)
    backend = transformers.PreTrainedTokenizerFast(
        tokenizer_object=_one_token_backend(), chat_template=metadata["tokenizer.chat_template"]
    )
    for messages in CONVERSATIONS:
        for prompt in (True, False):
            expected = backend.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
            assert template.render(messages, 2048, add_generation_prompt=prompt) == expected


def _one_token_backend():
    from tokenizers import Tokenizer, models

    return Tokenizer(models.WordLevel({"a": 0}, "a"))


def write(directory, name, value):
    (directory / name).write_text(value if isinstance(value, str) else json.dumps(value))


def chosen(directory, has_tools=False, override=None):
    return load_chat_templates(str(directory), None, override).choose(has_tools).render(USER, LEN)


def test_templates_are_found_where_transformers_finds_them(tmp_path):
    with pytest.raises(InvalidArgument, match=r"no chat template: there is none in tokenizer_config.json or chat_temp"):
        chosen(tmp_path)
    write(tmp_path, "tokenizer_config.json", {"chat_template": "config {{ bos_token }}", "bos_token": "<s>"})
    assert chosen(tmp_path) == "config <s>"
    write(tmp_path, "chat_template.jinja", "file {{ bos_token }}")
    assert chosen(tmp_path) == "file <s>"
    write(tmp_path, "other.json", {"chat_template": "override {{ bos_token }}", "bos_token": {"content": "<b>"}})
    assert chosen(tmp_path, override=str(tmp_path / "other.json")) == "override <b>"


def test_named_templates_are_chosen_by_use(tmp_path):
    both = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
    write(tmp_path, "tokenizer_config.json", {"chat_template": both})
    assert (chosen(tmp_path), chosen(tmp_path, has_tools=True)) == ("plain", "with tools")
    write(tmp_path, "tokenizer_config.json", {"chat_template": both[1:]})
    with pytest.raises(InvalidArgument, match=r"chat templates \(tool_use\) is called 'default'"):
        chosen(tmp_path)


@pytest.mark.parametrize("value", [5, [5], [{"name": "a"}], [{"name": "a", "template": "x"}] * 2, {}])
def test_a_template_of_another_type_is_a_format_error(tmp_path, value):
    write(tmp_path, "tokenizer_config.json", {"chat_template": value})
    with pytest.raises(FormatError, match="chat_template must be a string, or a list"):
        chosen(tmp_path)


def test_gguf_templates_are_named_by_their_keys():
    tokens = {"tokenizer.ggml.tokens": ["<s>", "</s>"], "tokenizer.ggml.bos_token_id": 0}
    metadata = {**tokens, "tokenizer.chat_template": "{{ bos_token }}", "tokenizer.chat_template.tool_use": "tools"}
    templates = load_chat_templates(None, metadata)
    assert [templates.choose(tools).render(USER, LEN) for tools in (False, True)] == ["<s>", "tools"]
    with pytest.raises(FormatError, match=r"tokenizer\.chat_template must be a string, found int"):
        load_chat_templates(None, {"tokenizer.chat_template": 1})
    with pytest.raises(InvalidArgument, match="none in the GGUF key"):
        load_chat_templates(None, {}).choose(False)
