#include "cli/tty.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sys/ioctl.h>

#define SIZE_MAX_CELLS 1000U
#define DEFAULT_COLS   80U
#define DEFAULT_ROWS   24U

static int apply_raw(const struct tty *t)
{
    struct termios raw = t->saved;

    cfmakeraw(&raw);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    return tcsetattr(t->fd, TCSADRAIN, &raw);
}

int tty_set_raw(struct tty *t, struct error *err)
{
    if (t->is_raw || tcgetpgrp(t->fd) != getpgrp()) {
        return 0;
    }
    if (tcgetattr(t->fd, &t->saved) < 0) {
        return error_set(err, errno, "cannot read the terminal's mode: %s", strerror(errno));
    }
    if (apply_raw(t) < 0) {
        return error_set(err, errno, "cannot set the terminal's mode: %s", strerror(errno));
    }
    t->is_raw = true;
    return 0;
}

void tty_set_raw_again(struct tty *t)
{
    if (t->is_raw && tcgetpgrp(t->fd) == getpgrp()) {
        (void)apply_raw(t);
    }
}

void tty_restore(struct tty *t)
{
    if (t->is_raw) {
        (void)tcsetattr(t->fd, TCSADRAIN, &t->saved);
    }
    t->is_raw = false;
}

static unsigned int clamp(unsigned int value, unsigned int otherwise)
{
    return value == 0 ? otherwise : value < SIZE_MAX_CELLS ? value : SIZE_MAX_CELLS;
}

struct tty_size tty_get_size(void)
{
    static const int fds[] = {STDOUT_FILENO, STDIN_FILENO, STDERR_FILENO};
    struct winsize w = {0};

    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
        if (ioctl(fds[i], TIOCGWINSZ, &w) == 0) {
            break;
        }
    }
    return (struct tty_size){clamp(w.ws_col, DEFAULT_COLS), clamp(w.ws_row, DEFAULT_ROWS)};
}

void tty_get_term(const char *env_term, char ret[TTY_TERM_SIZE])
{
    size_t n = env_term != NULL ? strlen(env_term) : 0;
    bool good = n > 0 && n < TTY_TERM_SIZE;

    for (size_t i = 0; i < n && good; i++) {
        good = env_term[i] > ' ' && env_term[i] <= '~';
    }
    (void)snprintf(ret, TTY_TERM_SIZE, "%s", good ? env_term : "xterm");
}
