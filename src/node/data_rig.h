/* Test support: the data side of space-node without virtual machines.
 *
 * It stands in for the VM layer: each sandbox is a `space-init --agent` process of this machine
 * (or whatever else listens on its socket), found again after a restart as a VM would be. Runs as a
 * program of its own, so that tests can kill it. Never installed. */
#pragma once

struct data_rig_options {
    const char *agent_program; /* started as PROGRAM --agent SOCKET; NULL: sockets exist already */
    const char *data_dir;      /* sandboxes/<id>/ */
    const char *run_dir;       /* node.sock and <id>.agent */
    unsigned int spool_bytes;  /* 0: the default */
    unsigned int max_processes;
    unsigned int keep_minutes;
    /* "KEY=VALUE" …, NULL-terminated; may be NULL. Beside the settings of a node: timeout_guard_ms,
     * checkpoints, how many are listed (each with 64 KiB), and agent_mode, which the agent's
     * program gets instead of "--agent". */
    char *const *settings;
};

struct node;
unsigned int data_rig_checkpoints(const struct node *node);
/* Serves until SIGTERM. 0 or -errno. */
int data_rig_run(const struct data_rig_options *options);
