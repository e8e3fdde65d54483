/* What a command says in the fake node: the name of its program and how many ran before it, or a
 * long text. */
#pragma once

struct json_t;

/* The result, by process id, of what was asked for with `body`; kept in `processes`, and the same
 * the next time. */
struct json_t *fake_run(struct json_t *processes, const struct json_t *body);
