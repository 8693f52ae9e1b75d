/* A server inside another program, whose own handlers come back. Usage: server FLAG... */
#include <signal.h>

#include "check.h"

static volatile sig_atomic_t n_signals;

static void count(int number)
{
    n_signals += number == SIGTERM;
}

int main(int argc, char** argv)
{
    signal(SIGTERM, count);
    int32_t code = vllm_server_main(argc, (const char* const*)argv);
    CHECK(n_signals == 0);
    raise(SIGTERM);
    CHECK(n_signals == 1);
    return code;
}
