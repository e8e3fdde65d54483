/* The terminal that `space` itself runs in. */
#pragma once

#include <stdbool.h>
#include <termios.h>

#include "base/error.h"

#define TTY_TERM_SIZE 65

struct tty {
    int fd; /* of standard input; borrowed */
    bool is_raw;
    struct termios saved;
};

struct tty_size {
    unsigned int cols;
    unsigned int rows;
};

/* Raw mode: every key goes through as it is. Does nothing when we are in the background. */
int tty_set_raw(struct tty *t, struct error *err) _must_check_;
/* Raw mode again, after somebody else has set another; what tty_restore gives back stays the same.
 */
void tty_set_raw_again(struct tty *t);
/* As it was before. Does nothing when it was not raw. */
void tty_restore(struct tty *t);

static inline void cleanup_tty(struct tty *t)
{
    tty_restore(t);
}
#define _cleanup_tty_ _cleanup_(cleanup_tty)

/* The size of whichever of standard output, input, error is a terminal; 80 x 24 when none is or it
 * does not know. Within what the API takes. */
struct tty_size tty_get_size(void);
/* TERM, or "xterm" when it is not set or nothing that the API takes. */
void tty_get_term(const char *env_term, char ret[TTY_TERM_SIZE]);
