/* Test support: the data rig (data_rig.h) as a process that can be killed, and a blocking client of
 * its socket. Failures end the running cmocka test. */
#pragma once

#include <sys/types.h>

#include <jansson.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/id.h"

struct rig {
    char dir[64];
    bool has_fake_services; /* instead of the real agent */
    const char *agent_mode; /* of fake-agent, instead of the real agent; needs `settings` */
    const char *settings;   /* "KEY=VALUE" for the rig, or NULL */
    char spool_bytes[16];
    char max_processes[16];
    pid_t pid;
};

struct answer {
    int status; /* 0: the connection ended without one */
    struct buf head;
    struct buf body;
    json_t *json; /* NULL when the body is none */
};

#define _cleanup_answer_ _cleanup_(answer_done)

/* A rig that runs, with no sandbox. 0 stands for the defaults. */
struct rig *rig_new(unsigned int spool_bytes, unsigned int max_processes);
/* The same with fake-services as agents, and one setting ("KEY=VALUE") or NULL. */
struct rig *rig_new_fake(const char *setting);
/* The same with fake-agent in this mode, and one setting. */
struct rig *rig_new_lying(const char *mode, const char *setting);
void rig_free(struct rig *rig);
void rig_start(struct rig *rig);
/* kill -9. The agents live on. */
void rig_kill(struct rig *rig);
/* SIGTERM; returns the exit status. */
int rig_stop(struct rig *rig);

void answer_done(struct answer *answer);
/* A text of the JSON answer by a path such as "error.code"; "" when it is none. */
const char *answer_text(const struct answer *answer, const char *path);
json_int_t answer_number(const struct answer *answer, const char *path);
/* Whether the head has this line ("X-Space-End: true"). */
bool answer_has(const struct answer *answer, const char *line);
/* Connects and sends; -1 when nobody listens. `body` may be NULL. With `old`, HTTP/1.0. */
int rig_send(
    const struct rig *rig, const char *method, const char *path, struct span body, bool old);
/* The same with HTTP/1.1 and more header lines (each with its end of line). */
int rig_send_with(const struct rig *rig,
                  const char *method,
                  const char *path,
                  const char *headers,
                  struct span body);
/* Connects and asks for a WebSocket. */
int rig_send_upgrade(const struct rig *rig, const char *path);
void rig_receive(int fd, struct answer *ret_answer);
void rig_ask(const struct rig *rig,
             const char *method,
             const char *path,
             const char *body,
             struct answer *ret_answer);
/* The same; the answer must have this status. */
void rig_expect(
    const struct rig *rig, const char *method, const char *path, const char *body, int status);

/* The state of a sandbox, or "deleted". */
void rig_wait_state(const struct rig *rig, const char *id, const char *state);
/* When it was active last. What is activity from now on is later than that. */
void rig_read_active(const struct rig *rig, const char *id, char ret_active[CLOCK_TEXT_SIZE]);
/* Waits until it was active later than that. */
void rig_wait_active(const struct rig *rig, const char *id, const char *active);
/* Makes a running sandbox. */
void rig_make_sandbox(const struct rig *rig, char id[ID_SIZE]);
/* Posts a command's fields (JSON without braces) with fresh ids to `what` ("run", "commands"). */
void rig_command(const struct rig *rig,
                 const char *sandbox,
                 const char *what,
                 const char *fields,
                 struct answer *ret_answer);
/* The text of one stream of a finished session. */
void rig_read_output(const struct rig *rig,
                     const char *sandbox,
                     const char *session,
                     const char *query,
                     struct answer *ret_answer);
/* Memory of the rig's own. */
uint64_t rig_anonymous_kib(const struct rig *rig);

/* ---- a test with one sandbox ---- */

struct fixture {
    struct rig *rig;
    char sandbox[ID_SIZE];
};

struct started {
    char process[ID_SIZE];
    char session[ID_SIZE];
    char base[120]; /* path of the process */
};

int fixture_set_up(void **state);
int fixture_tear_down(void **state);
/* Starts a command that must start. */
void fixture_start(const struct fixture *f, const char *fields, struct started *ret);
/* A request about a process: `rest` follows its path. */
void fixture_ask(const struct fixture *f,
                 const struct started *p,
                 const char *method,
                 const char *rest,
                 const char *body,
                 struct answer *ret_answer);

/* "DIR/name" of this test's directory of programs. */
void rig_program(const char *name, char out[512]);
