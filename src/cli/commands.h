/* The verbs. Each prints what it has to say and returns the exit status. */
#pragma once

struct args;
struct cli;

int cmd_up(struct cli *cli, const struct args *args);
int cmd_down(struct cli *cli, const struct args *args);
int cmd_status(struct cli *cli, const struct args *args);
int cmd_doctor(struct cli *cli, const struct args *args);
int cmd_version(struct cli *cli, const struct args *args);
int cmd_env(struct cli *cli, const struct args *args);
int cmd_run(struct cli *cli, const struct args *args);
int cmd_create(struct cli *cli, const struct args *args);
int cmd_ls(struct cli *cli, const struct args *args);
int cmd_show(struct cli *cli, const struct args *args);
int cmd_pause(struct cli *cli, const struct args *args);
int cmd_suspend(struct cli *cli, const struct args *args);
int cmd_wake(struct cli *cli, const struct args *args);
int cmd_fork(struct cli *cli, const struct args *args);
int cmd_checkpoint(struct cli *cli, const struct args *args);
int cmd_rollback(struct cli *cli, const struct args *args);
int cmd_rm(struct cli *cli, const struct args *args);
int cmd_shell(struct cli *cli, const struct args *args);
int cmd_attach(struct cli *cli, const struct args *args);
int cmd_exec(struct cli *cli, const struct args *args);
int cmd_ps(struct cli *cli, const struct args *args);
int cmd_signal(struct cli *cli, const struct args *args);
int cmd_kill(struct cli *cli, const struct args *args);
int cmd_cp(struct cli *cli, const struct args *args);
int cmd_forward(struct cli *cli, const struct args *args);
int cmd_ports(struct cli *cli, const struct args *args);
int cmd_stats(struct cli *cli, const struct args *args);
int cmd_watch(struct cli *cli, const struct args *args);
int cmd_logs(struct cli *cli, const struct args *args);
int cmd_templates(struct cli *cli, const struct args *args);
int cmd_keys(struct cli *cli, const struct args *args);
int cmd_node(struct cli *cli, const struct args *args);
int cmd_help(struct cli *cli, const struct args *args);
/* Candidates for the shell's completion, one a line; not shown in the help. */
int cmd_complete(struct cli *cli, const struct args *args);
