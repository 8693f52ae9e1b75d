/*
 * How a server that runs inside another program is ended: by SIGINT or SIGTERM, as a server is. Only while it runs are
 * they handled, and then the former handlers are put back. SIGPIPE is ignored meanwhile, because a client that leaves
 * would end the program by it.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "internal.h"

static const int taken[] = {SIGINT, SIGTERM, SIGPIPE};
enum { N_TAKEN = sizeof taken / sizeof *taken };
static struct sigaction former[N_TAKEN];
static int is_taken;
static volatile int stop_fd = -1;

static void on_signal(int number)
{
    int saved = errno;
    uint64_t one = 1;
    ssize_t written = write(stop_fd, &one, sizeof one);
    (void)written;
    (void)number;
    errno = saved;
}

int vllm__take_signals(void)
{
    if (__atomic_exchange_n(&is_taken, 1, __ATOMIC_ACQUIRE)) {
        vllm__set_errorf("vllm_server_main: a server is running in this process already");
        return -1;
    }
    stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (stop_fd < 0) {
        vllm__set_errorf("vllm_server_main: eventfd: %s", strerror(errno));
        __atomic_store_n(&is_taken, 0, __ATOMIC_RELEASE);
        return -1;
    }
    for (int i = 0; i < N_TAKEN; i++) {
        struct sigaction action;
        memset(&action, 0, sizeof action);
        action.sa_handler = taken[i] == SIGPIPE ? SIG_IGN : on_signal;
        action.sa_flags = SA_RESTART;
        sigaction(taken[i], &action, &former[i]);
    }
    return stop_fd;
}

void vllm__leave_signals(void)
{
    for (int i = 0; i < N_TAKEN; i++)
        sigaction(taken[i], &former[i], NULL);
    close(stop_fd);
    stop_fd = -1;
    __atomic_store_n(&is_taken, 0, __ATOMIC_RELEASE);
}
