/* The handlers of the route table, by file. */
#pragma once

#include "api/request.h"

/* route_sandboxes.c */
void route_sandbox_create(struct request *rq);
void route_sandbox_delete(struct request *rq);
void route_sandbox_pause(struct request *rq);
void route_sandbox_suspend(struct request *rq);
void route_sandbox_wake(struct request *rq);
/* `{"sandbox", "operation"}` of rq->operation_id: the answer of every lifecycle call. */
void route_answer_lifecycle(struct request *rq);
/* route_checkpoints.c */
struct checkpoint;
struct error;
struct sandbox;
/* Makes the operation's id; an attempt that was cut off by a crash had this very operation, and is
 * answered then. */
bool route_answer_earlier(struct request *rq, char operation_id[21]);
/* A checkpoint of this sandbox that is to be made: all but its name, with memory. */
int route_fill_checkpoint(struct request *rq,
                          const struct sandbox *s,
                          struct checkpoint *c,
                          struct error *err);
void route_checkpoint_create(struct request *rq);
void route_checkpoint_list(struct request *rq);
void route_checkpoint_list_all(struct request *rq);
void route_checkpoint_get(struct request *rq);
void route_checkpoint_delete(struct request *rq);
void route_sandbox_rollback(struct request *rq);
/* route_fork.c */
void route_sandbox_fork(struct request *rq);
/* route_sandbox_read.c */
void route_sandbox_list(struct request *rq);
void route_sandbox_get(struct request *rq);
void route_sandbox_console(struct request *rq);
/* route_sandbox_patch.c */
void route_sandbox_patch(struct request *rq);
/* route_operations.c */
void route_operation_list(struct request *rq);
void route_operation_get(struct request *rq);
/* run_once.c */
void route_run_once(struct request *rq);
/* route_commands.c */
void route_command_run(struct request *rq);
void route_command_start(struct request *rq);
void route_process_list(struct request *rq);
void route_process_get(struct request *rq);
void route_process_result(struct request *rq);
void route_process_signal(struct request *rq);
void route_process_kill(struct request *rq);
void route_process_stdin(struct request *rq);
void route_process_resize(struct request *rq);
/* route_files.c */
void route_files_pass(struct request *rq);
void route_files_list(struct request *rq);
void route_files_get(struct request *rq);
void route_files_put(struct request *rq);
void route_sandbox_metrics(struct request *rq);
/* route_form.c */
void route_files_form(struct request *rq);
/* route_sessions.c */
void route_session_events(struct request *rq);
void route_session_output(struct request *rq);
void route_session_attach(struct request *rq);
/* tokens.c */
void route_token_create(struct request *rq);
/* route_ports.c */
void route_port_list(struct request *rq);
void route_port_get(struct request *rq);
void route_port_put(struct request *rq);
void route_port_tcp(struct request *rq);
/* route_templates.c */
void route_template_list(struct request *rq);
void route_template_get(struct request *rq);
void route_template_create(struct request *rq);
void route_template_delete(struct request *rq);
/* route_keys.c */
void route_key_list(struct request *rq);
void route_key_create(struct request *rq);
void route_key_delete(struct request *rq);
/* route_nodes.c */
void route_node_list(struct request *rq);
void route_node_get(struct request *rq);
void route_node_drain(struct request *rq);
void route_node_undrain(struct request *rq);
/* route_service.c */
void route_healthz(struct request *rq);
void route_readyz(struct request *rq);
void route_version(struct request *rq);
void route_openapi(struct request *rq);

#define SANDBOX_FIELDS                                                                             \
    "id name template template_version parent_id state state_reason vcpus memory_mib disk_mib "    \
    "metadata env_names lifecycle created_at running_at active_at expires_at node identity "       \
    "durability"
#define CHECKPOINT_FIELDS "id name sandbox_id memory size_bytes durability created_at"
#define OPERATION_FIELDS  "id kind sandbox_id state created_at finished_at error result"
#define PROCESS_FIELDS                                                                             \
    "id pid argv cwd user tty state exit_code signal timed_out out_of_memory "                     \
    "session_id started_at exited_at"
#define TEMPLATE_FIELDS                                                                            \
    "name version vcpus memory_mib disk_mib user created_at memory checkpoint_id env_names "       \
    "current"
#define KEY_FIELDS "id name role created_at expires_at"
#define NODE_FIELDS                                                                                \
    "name state connected drain_requested_at drained_at sandboxes version vcpus memory disk "      \
    "problems"
#define PORT_FIELDS "port address process_id public url"
#define ENTRY_FIELDS                                                                               \
    "path name type size_bytes mode uid gid user group modified_at symlink_target name_base64 "    \
    "path_base64"
