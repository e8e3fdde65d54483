/* Help text and the man page, made from the verb tables. */
#pragma once

struct buf;
struct option_spec;
struct verb;

void help_put_overview(struct buf *out,
                       const struct verb *verbs,
                       const struct option_spec *globals);
void help_put_verb(struct buf *out, const struct verb *verb, const struct option_spec *globals);
/* space(1) in the man macros of groff. */
void help_put_man_settings(struct buf *out); /* space.conf(5), of the table of settings */
void help_put_man(struct buf *out, const struct verb *verbs, const struct option_spec *globals);
