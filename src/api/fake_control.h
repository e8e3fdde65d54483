/* How the fake node behaves: a file of lines "NAME VALUE", read anew for each call. */
#pragma once

#include <stdbool.h>

struct control {
    int delay_ms;
    char fail[64];
    int fail_each; /* only each N-th PUT fails so; 0: all of them */
    bool die_in_put;
    bool die_in_answer;
    bool lose_answer; /* a command runs, but 503 is said of it */
    bool lose;
    bool not_ready;
    bool is_started; /* the feed says so at each request */
    int delete_delay_ms;
    bool delete_fail;
    int change_delay_ms; /* of a pause, suspend or wake */
    char change_fail[64];
    bool is_settling; /* it was restarted, and its sandboxes are not yet at rest */
};

/* What stands in "<path>.checkpoints", as the list of all checkpoints; NULL: nothing. */
struct json_t *control_checkpoints(const char *path);
/* All zero where the file says nothing. */
void control_read(const char *path, struct control *c);
