/* One line on the terminal that says how far a transfer is; nothing where stderr is no terminal. */
#pragma once

#include <stdint.h>

struct cli;

struct progress {
    const struct cli *cli;
    char what[80];
    uint64_t total_bytes; /* 0: not known */
    int64_t began_ms;
    int64_t shown_ms; /* 0: no line is on the terminal */
};

void progress_init(struct progress *p, const struct cli *cli, const char *what, uint64_t total);
/* `files` 0: not counted. */
void progress_show(struct progress *p, uint64_t bytes, uint64_t files);
/* Takes the line away. */
void progress_clear(struct progress *p);
/* … and says what was done. */
void progress_done(struct progress *p, uint64_t bytes, uint64_t files);
