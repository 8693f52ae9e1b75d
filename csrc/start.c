/*
 * The one start of Python. cffi's own start-up is not used for the interpreter: it follows PATH and PYTHONHOME, and it
 * turns a failure into a return value of 0, which would read as VLLM_OK.
 */
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { NOT_STARTED, STARTING, READY, FAILED, FORKED, ENDING };

static int state = NOT_STARTED; /* atomic */
static pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local bool is_starting;
static bool is_bound;
static bool owns_interpreter;
static char start_error[8192];

void vllm__mark_bound(void)
{
    is_bound = true;
}

/* A child has none of the threads that the interpreter and the engines had, and maybe locks that they held. Two it needs
 * when it calls exit(), whose destructors of torch take the GIL: that, so the thread that forks holds it then, and in the
 * child for ever; and the lock of exit()'s list, which only leave.c takes without the GIL. */
static _Thread_local bool forks_with_gil;
static _Thread_local PyGILState_STATE gil_before_fork;

static void before_fork(void)
{
    forks_with_gil = owns_interpreter && __atomic_load_n(&state, __ATOMIC_ACQUIRE) == READY;
    if (forks_with_gil)
        gil_before_fork = PyGILState_Ensure();
    vllm__hold_guard();
}

static void after_fork_in_parent(void)
{
    vllm__release_guard();
    if (forks_with_gil)
        PyGILState_Release(gil_before_fork);
}

static void after_fork_in_child(void)
{
    vllm__release_guard();
    if (__atomic_load_n(&state, __ATOMIC_ACQUIRE) != NOT_STARTED)
        __atomic_store_n(&state, FORKED, __ATOMIC_RELEASE);
}

__attribute__((constructor)) static void guard_against_fork(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* ---- the interpreter ---- */

static int initialize_failed(PyStatus status, const char* program)
{
    vllm__set_errorf("cannot start Python %d.%d as %s: %s; set VLLM_PYTHON_HOME to the virtual environment or prefix "
                     "that has pyvllm", PY_MAJOR_VERSION, PY_MINOR_VERSION, program,
                     status.err_msg ? status.err_msg : "no reason given");
    return -1;
}

static int initialize_python(const char* program)
{
    PyPreConfig before;
    PyConfig config;
    PyPreConfig_InitIsolatedConfig(&before);
    before.utf8_mode = 1; /* without it the locale of the host would have to be changed */
    PyStatus status = Py_PreInitialize(&before);
    if (PyStatus_Exception(status))
        return initialize_failed(status, program);
    PyConfig_InitIsolatedConfig(&config);
    config.install_signal_handlers = 0;
    config.parse_argv = 0;
    config.user_site_directory = 0;
    config.site_import = 1;
    config.buffered_stdio = 0; /* nothing would flush it: the interpreter is never finalised */
    status = PyConfig_SetBytesString(&config, &config.program_name, program);
    if (!PyStatus_Exception(status))
        status = Py_InitializeFromConfig(&config);
    PyConfig_Clear(&config);
    return PyStatus_Exception(status) ? initialize_failed(status, program) : 0;
}

static volatile sig_atomic_t sigint_came;

static void note_sigint(int number)
{
    (void)number;
    sigint_came = 1;
}

/* Importing `signal` takes SIGINT when it finds SIG_DFL there, even with install_signal_handlers = 0. So import it once
 * while another handler stands there, then put the host's back. */
static void keep_sigint(void)
{
    struct sigaction mine = {.sa_handler = note_sigint}, old;
    sigemptyset(&mine.sa_mask);
    if (sigaction(SIGINT, &mine, &old) != 0)
        return;
    Py_XDECREF(PyImport_ImportModule("_signal"));
    PyErr_Clear();
    sigaction(SIGINT, &old, NULL);
    if (sigint_came)
        raise(SIGINT);
}

/* stdout belongs to the host: what any Python module prints goes to stderr. */
static void keep_stdout(void)
{
    PyObject* target = PySys_GetObject("stderr");
    PySys_SetObject("stdout", target);
    PySys_SetObject("__stdout__", target);
}

/* CPython falls back to the prefix that it was compiled with when a program's own is incomplete. What was asked for by
 * name must not be replaced in silence. */
static int check_prefix(const vllm__home* home)
{
    char wanted[PATH_MAX], found[PATH_MAX];
    PyObject* object = PySys_GetObject("prefix");
    const char* prefix = object && PyUnicode_Check(object) ? PyUnicode_AsUTF8(object) : NULL;
    if (!home->chosen)
        return 0;
    if (prefix && realpath(prefix, found) && realpath(home->chosen, wanted) && strcmp(found, wanted) == 0)
        return 0;
    vllm__set_errorf("VLLM_PYTHON_HOME is %s, but the Python in it runs with the prefix %s; name a complete virtual "
                     "environment or prefix that has pyvllm", home->chosen, prefix ? prefix : "(none)");
    PyErr_Clear();
    return -1;
}

static int start_interpreter(const vllm__home* home)
{
    Dl_info info;
    /* extension modules find Python's symbols only if they are global, also when we were opened with RTLD_LOCAL */
    if (dladdr((const void*)&Py_GetVersion, &info) && info.dli_fname)
        dlopen(info.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
    if (initialize_python(home->program) != 0)
        return -1;
    owns_interpreter = true;
    keep_sigint();
    keep_stdout();
    int result = check_prefix(home);
    PyEval_SaveThread();
    return result;
}

/* ---- pyvllm in it ---- */

/* Take the current Python exception; the caller owns it. */
static PyObject* raised_exception(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return value;
#endif
}

/* Turn the current Python exception into the error text. */
static void take_exception(const char* module)
{
    PyObject* value = raised_exception();
    PyObject* text = value ? PyObject_Str(value) : NULL;
    const char* reason = text ? PyUnicode_AsUTF8(text) : NULL;
    PyObject* executable = PySys_GetObject("executable");
    const char* program = executable && PyUnicode_Check(executable) ? PyUnicode_AsUTF8(executable) : NULL;
    vllm__set_errorf("cannot import %s in %s Python %d.%d (%s): %s; set VLLM_PYTHON_HOME to the virtual environment or "
                     "prefix that has pyvllm", module, owns_interpreter ? "the embedded" : "the running",
                     PY_MAJOR_VERSION, PY_MINOR_VERSION, program ? program : "no executable",
                     reason && *reason ? reason : "no reason given");
    PyErr_Clear();
    Py_XDECREF(text);
    Py_XDECREF(value);
}

static int import(const char* module)
{
    PyObject* object = PyImport_ImportModule(module);
    Py_XDECREF(object);
    return object ? 0 : -1;
}

/* Put the directories of VLLM_PYTHONPATH in front of the module path. */
static void prepend_paths(void)
{
    const char* given = getenv("VLLM_PYTHONPATH");
    PyObject* path = PySys_GetObject("path");
    if (!owns_interpreter || !given || !*given || !path)
        return;
    PyObject* text = PyUnicode_DecodeFSDefault(given);
    PyObject* parts = text ? PyObject_CallMethod(text, "split", "s", ":") : NULL;
    if (parts)
        PyList_SetSlice(path, 0, 0, parts);
    Py_XDECREF(parts);
    Py_XDECREF(text);
    PyErr_Clear();
}

/* Add the directory that the library was installed in, with its .pth files. */
static int add_site_dir(const char* directory)
{
    PyObject* site = PyImport_ImportModule("site");
    PyObject* added = site ? PyObject_CallMethod(site, "addsitedir", "s", directory) : NULL;
    Py_XDECREF(added);
    Py_XDECREF(site);
    return added ? 0 : -1;
}

/* Import what the binding needs beforehand: cffi would print a failure as a traceback. */
static int import_pyvllm(const vllm__home* home)
{
    int result = import("pyvllm");
    if (result != 0 && home->site_dir[0] && PyErr_ExceptionMatches(PyExc_ModuleNotFoundError)) {
        PyErr_Clear();
        result = add_site_dir(home->site_dir) == 0 ? import("pyvllm") : -1;
    }
    if (result != 0)
        take_exception("pyvllm");
    else if ((result = import("_cffi_backend")) != 0)
        take_exception("_cffi_backend (of the package cffi)");
    return result;
}

/* ---- the start ---- */

/* Compare the Python that is there with the one that the library was built for. */
static int check_version(void)
{
    int major = 0, minor = 0;
    sscanf(Py_GetVersion(), "%d.%d", &major, &minor);
    if (major == PY_MAJOR_VERSION && minor == PY_MINOR_VERSION)
        return 0;
    vllm__set_errorf("libvllm was built for Python %d.%d but this process runs Python %d.%d; install pyvllm in the "
                     "Python that runs, or use the library from a process without Python",
                     PY_MAJOR_VERSION, PY_MINOR_VERSION, major, minor);
    return -1;
}

static int start_locked(void)
{
    static vllm__home home;
    if (check_version() != 0)
        return -1;
    if (Py_IsInitialized())
        vllm__find_site_dir(&home);
    else if (vllm__find_program(&home) != 0 || start_interpreter(&home) != 0)
        return -1;
    PyGILState_STATE gil = PyGILState_Ensure();
    prepend_paths();
    int result = import_pyvllm(&home);
    PyGILState_Release(gil);
    if (result != 0)
        return -1;
    vllm__clear_error();
    if (vllm__cffi_start() == 0 && is_bound)
        return 0;
    if (!*vllm_last_error())
        vllm__set_error("pyvllm did not bind its functions to this copy of libvllm; reinstall pyvllm");
    return -1;
}

static void start_once(void)
{
    /* with the GIL in hand (a caller through ctypes.PyDLL) we would wait for a thread that waits for the GIL */
    PyThreadState* thread = Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : NULL;
    pthread_mutex_lock(&start_lock);
    if (state == NOT_STARTED) {
        __atomic_store_n(&state, STARTING, __ATOMIC_RELEASE);
        is_starting = true;
        int result = start_locked();
        is_starting = false;
        if (result != 0)
            memcpy(start_error, vllm_last_error(), sizeof start_error);
        __atomic_store_n(&state, result == 0 ? READY : FAILED, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&start_lock);
    if (thread)
        PyEval_RestoreThread(thread);
}

vllm_status vllm__start(void)
{
    int now = __atomic_load_n(&state, __ATOMIC_SEQ_CST);
    if (now == READY)
        return VLLM_OK;
    if (is_starting) {
        vllm__set_error("libvllm was called by pyvllm's own start; a module that it imports must not do that");
        return VLLM_ERR_RUNTIME;
    }
    if (now == NOT_STARTED || now == STARTING) {
        start_once();
        now = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
    }
    if (now == READY)
        return VLLM_OK;
    if (now == FORKED)
        vllm__set_error("libvllm was started before fork(), and the child cannot use it: call exec(), or fork before "
                        "the first call");
    else
        vllm__set_error(now == ENDING ? "the process is ending" : start_error);
    return VLLM_ERR_RUNTIME;
}

bool vllm__refuse_calls(void)
{
    int expected = READY;
    return owns_interpreter &&
           __atomic_compare_exchange_n(&state, &expected, ENDING, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}
