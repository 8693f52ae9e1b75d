/*
 * Which interpreter to behave as. It is decided from where the library lies, never from PATH or PYTHONHOME, so that the
 * environment of the caller cannot change what is loaded.
 */
#define _GNU_SOURCE
#include <Python.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

/* The interpreter that built the library: what an editable install runs in. build_ffi.py sets it. */
#ifndef VLLM_BUILD_PYTHON
#define VLLM_BUILD_PYTHON ""
#endif

#define TEXT_OF(x) #x
#define DIGITS_OF(x) TEXT_OF(x)
#define PYTHON_NAME "python" DIGITS_OF(PY_MAJOR_VERSION) "." DIGITS_OF(PY_MINOR_VERSION)

/* Cut the last part off a path, count times. Returns whether that many parts were there. */
static bool climb(char* path, int count)
{
    while (count-- > 0) {
        char* slash = strrchr(path, '/');
        if (!slash || slash == path)
            return false;
        *slash = '\0';
    }
    return true;
}

/* The real path of the file that a symbol came from. */
static bool file_of(const void* symbol, char path[PATH_MAX])
{
    Dl_info info;
    return dladdr(symbol, &info) && info.dli_fname && realpath(info.dli_fname, path);
}

/* Set the program to bin/python3.x of a prefix, if it is there. */
static bool use_prefix(vllm__home* home, const char* prefix)
{
    snprintf(home->program, sizeof home->program, "%s/bin/" PYTHON_NAME, prefix);
    if (access(home->program, X_OK) == 0)
        return true;
    home->program[0] = '\0';
    return false;
}

void vllm__find_site_dir(vllm__home* home)
{
    char path[PATH_MAX];
    char marker[PATH_MAX + 32];
    home->site_dir[0] = '\0';
    /* <site_dir>/pyvllm/lib/libvllm.so */
    if (!file_of((const void*)&vllm_last_error, path) || !climb(path, 3))
        return;
    snprintf(marker, sizeof marker, "%s/pyvllm/__init__.py", path);
    if (access(marker, R_OK) == 0)
        snprintf(home->site_dir, sizeof home->site_dir, "%s", path);
}

/* <prefix>/lib/python3.x/site-packages says where the prefix is; any other directory does not. */
static bool use_site_prefix(vllm__home* home)
{
    static const char tail[] = "/lib/" PYTHON_NAME "/site-packages";
    char prefix[PATH_MAX];
    size_t length = strlen(home->site_dir);
    if (length < sizeof tail || strcmp(home->site_dir + length - (sizeof tail - 1), tail) != 0)
        return false;
    snprintf(prefix, sizeof prefix, "%s", home->site_dir);
    return climb(prefix, 3) && use_prefix(home, prefix);
}

/* <prefix>/lib/libpython3.x.so or <prefix>/lib/<triplet>/libpython3.x.so: for a library installed apart from it. */
static bool use_libpython_prefix(vllm__home* home)
{
    char path[PATH_MAX];
    if (!file_of((const void*)&Py_GetVersion, path) || !climb(path, 2))
        return false;
    return use_prefix(home, path) || (climb(path, 1) && use_prefix(home, path));
}

int vllm__find_program(vllm__home* home)
{
    const char* chosen = getenv("VLLM_PYTHON_HOME");
    home->chosen = chosen && *chosen ? chosen : NULL;
    vllm__find_site_dir(home);
    if (home->chosen) { /* asked for by name: no other will do */
        if (use_prefix(home, chosen))
            return 0;
        vllm__set_errorf("VLLM_PYTHON_HOME is %s, but there is no bin/" PYTHON_NAME " in it; name the virtual "
                         "environment or prefix that has pyvllm", chosen);
        return -1;
    }
    if (use_site_prefix(home))
        return 0;
    if (access(VLLM_BUILD_PYTHON, X_OK) == 0) {
        snprintf(home->program, sizeof home->program, "%s", VLLM_BUILD_PYTHON);
        return 0;
    }
    if (use_libpython_prefix(home))
        return 0;
    vllm__set_errorf("cannot find " PYTHON_NAME " for the library in %s: set VLLM_PYTHON_HOME to the virtual "
                     "environment or prefix that has pyvllm", home->site_dir[0] ? home->site_dir : "(unknown)");
    return -1;
}
