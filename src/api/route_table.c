#include "api/route.h"
#include "api/routes.h"

#define MAKE_WAIT_MS 30000
#define SB           "/v1/sandboxes/{}"
#define PR           SB "/processes/{}"
#define FILES        SB "/files"
#define LIST_QUERY   "limit cursor fields"

#define READ   KEY_ROLE_READ
#define MEMBER KEY_ROLE_MEMBER
#define ADMIN  KEY_ROLE_ADMIN
#define NONE   ROUTE_BODY_NONE
#define JSON   ROUTE_BODY_JSON
#define MAYBE  ROUTE_BODY_OPTIONAL_JSON
#define RAW    ROUTE_BODY_RAW
#define PUBLIC ROUTE_PUBLIC
#define STREAM ROUTE_STREAM
#define TOKEN  ROUTE_TOKEN
#define FILE   (ROUTE_TOKEN | ROUTE_ANY_BYTES)
/* What a session's own token opens, from a URL too. */
#define SESSION (ROUTE_TOKEN | ROUTE_TOKEN_QUERY | ROUTE_SESSION)

static const struct route routes[] = {
    {"GET", "/healthz", route_healthz, READ, PUBLIC, NONE, "", 0},
    {"GET", "/readyz", route_readyz, READ, PUBLIC, NONE, "", 0},
    {"GET", "/version", route_version, READ, PUBLIC, NONE, "", 0},
    {"GET", "/openapi.json", route_openapi, READ, PUBLIC, NONE, "", 0},

    {"POST", "/v1/run", route_run_once, MEMBER, 0, JSON, "", 0},
    {"POST", "/v1/sandboxes", route_sandbox_create, MEMBER, 0, JSON, "wait", MAKE_WAIT_MS},
    {"GET", "/v1/sandboxes", route_sandbox_list, READ, 0, NONE,
     LIST_QUERY " state* template name metadata.* created_after created_before", 0},
    {"GET", SB, route_sandbox_get, READ, TOKEN, NONE, "fields", 0},
    {"PATCH", SB, route_sandbox_patch, MEMBER, 0, JSON, "", 0},
    {"DELETE", SB, route_sandbox_delete, MEMBER, 0, NONE, "wait", MAKE_WAIT_MS},
    {"POST", SB "/pause", route_sandbox_pause, MEMBER, 0, MAYBE, "wait", MAKE_WAIT_MS},
    {"POST", SB "/suspend", route_sandbox_suspend, MEMBER, 0, MAYBE, "wait", MAKE_WAIT_MS},
    {"POST", SB "/wake", route_sandbox_wake, MEMBER, 0, MAYBE, "wait", MAKE_WAIT_MS},
    {"POST", SB "/fork", route_sandbox_fork, MEMBER, 0, MAYBE, "wait", MAKE_WAIT_MS},
    {"POST", SB "/rollback", route_sandbox_rollback, MEMBER, 0, JSON, "wait", MAKE_WAIT_MS},
    {"POST", SB "/checkpoints", route_checkpoint_create, MEMBER, 0, MAYBE, "wait", MAKE_WAIT_MS},
    {"GET", SB "/checkpoints", route_checkpoint_list, READ, 0, NONE, LIST_QUERY, 0},
    {"GET", "/v1/checkpoints", route_checkpoint_list_all, READ, 0, NONE,
     LIST_QUERY " sandbox_id name", 0},
    {"GET", "/v1/checkpoints/{}", route_checkpoint_get, READ, 0, NONE, "fields", 0},
    {"DELETE", "/v1/checkpoints/{}", route_checkpoint_delete, MEMBER, 0, NONE, "", 0},
    {"GET", SB "/console", route_sandbox_console, READ, TOKEN, NONE, "", 0},
    {"POST", SB "/run", route_command_run, MEMBER, TOKEN, JSON, "", 0},
    {"POST", SB "/commands", route_command_start, MEMBER, TOKEN | ROUTE_GIVES_TOKEN, JSON, "", 0},
    {"GET", SB "/processes", route_process_list, READ, TOKEN, NONE, LIST_QUERY, 0},
    {"GET", PR, route_process_get, READ, TOKEN, NONE, "fields", 0},
    {"GET", PR "/result", route_process_result, READ, TOKEN, NONE, "wait max_output_bytes encoding",
     0},
    {"POST", PR "/signal", route_process_signal, MEMBER, TOKEN, JSON, "", 0},
    {"POST", PR "/kill", route_process_kill, MEMBER, TOKEN, MAYBE, "", 0},
    {"POST", PR "/stdin", route_process_stdin, MEMBER, TOKEN, RAW, "offset eof", 0},
    {"POST", PR "/resize", route_process_resize, MEMBER, TOKEN, JSON, "", 0},

    {"GET", FILES, route_files_get, READ, FILE, NONE, "path user", 0},
    {"PUT", FILES, route_files_put, MEMBER, FILE, RAW, "path user mode parents", 0},
    {"POST", FILES, route_files_form, MEMBER, FILE, RAW, "path user mode parents", 0},
    {"DELETE", FILES, route_files_pass, MEMBER, FILE, NONE, "path user recursive", 0},
    {"GET", FILES "/stat", route_files_pass, READ, FILE, NONE, "path user", 0},
    {"GET", FILES "/list", route_files_list, READ, FILE, NONE, "path user depth " LIST_QUERY, 0},
    {"GET", FILES "/watch", route_files_pass, READ, FILE | STREAM, NONE,
     "path user recursive after", 0},
    {"POST", FILES "/mkdir", route_files_pass, MEMBER, FILE, JSON, "", 0},
    {"POST", FILES "/move", route_files_pass, MEMBER, FILE, JSON, "", 0},
    {"POST", FILES "/chmod", route_files_pass, MEMBER, FILE, JSON, "", 0},
    {"POST", FILES "/chown", route_files_pass, MEMBER, FILE, JSON, "", 0},
    {"GET", FILES "/tar", route_files_get, READ, FILE, NONE, "path user exclude* compression", 0},
    {"PUT", FILES "/tar", route_files_put, MEMBER, FILE, RAW, "path user compression", 0},
    {"GET", SB "/metrics", route_sandbox_metrics, READ, TOKEN, NONE, "start end", 0},

    {"GET", SB "/ports", route_port_list, READ, TOKEN, NONE, LIST_QUERY, 0},
    {"GET", SB "/ports/{}", route_port_get, READ, TOKEN | ROUTE_PORT, NONE, "wait", 0},
    {"PUT", SB "/ports/{}", route_port_put, MEMBER, 0, JSON, "", 0},
    {"GET", SB "/ports/{}/tcp", route_port_tcp, MEMBER,
     TOKEN | ROUTE_PORT | ROUTE_TOKEN_QUERY | STREAM, NONE, "token", 0},

    {"GET", "/v1/sessions/{}/events", route_session_events, READ, SESSION | STREAM, NONE,
     "after tail_bytes token", 0},
    {"GET", "/v1/sessions/{}/output", route_session_output, READ, SESSION, NONE,
     "stream offset limit wait token", 0},
    {"GET", "/v1/sessions/{}/attach", route_session_attach, READ, SESSION | STREAM, NONE,
     "stdout stderr replaces token", 0},
    {"POST", "/v1/tokens", route_token_create, READ, ROUTE_TOKEN_BODY | ROUTE_GIVES_TOKEN, JSON, "",
     0},

    {"GET", "/v1/operations", route_operation_list, READ, 0, NONE,
     LIST_QUERY " sandbox_id state* kind", 0},
    {"GET", "/v1/operations/{}", route_operation_get, READ, 0, NONE, "wait fields", 0},
    {"POST", "/v1/templates", route_template_create, MEMBER, 0, JSON, "wait", MAKE_WAIT_MS},
    {"GET", "/v1/templates", route_template_list, READ, 0, NONE, LIST_QUERY " name", 0},
    {"GET", "/v1/templates/{}", route_template_get, READ, 0, NONE, "fields", 0},
    {"DELETE", "/v1/templates/{}", route_template_delete, MEMBER, 0, NONE, "", 0},
    {"GET", "/v1/keys", route_key_list, ADMIN, 0, NONE, LIST_QUERY, 0},
    {"POST", "/v1/keys", route_key_create, ADMIN, 0, JSON, "", 0},
    {"DELETE", "/v1/keys/{}", route_key_delete, ADMIN, 0, NONE, "", 0},
    {"GET", "/v1/nodes", route_node_list, ADMIN, 0, NONE, LIST_QUERY, 0},
    {"GET", "/v1/nodes/{}", route_node_get, ADMIN, 0, NONE, "wait fields", 0},
    {"POST", "/v1/nodes/{}/drain", route_node_drain, ADMIN, 0, MAYBE, "wait", MAKE_WAIT_MS},
    {"POST", "/v1/nodes/{}/undrain", route_node_undrain, ADMIN, 0, MAYBE, "wait", MAKE_WAIT_MS},
    {NULL, NULL, NULL, READ, 0, NONE, NULL, 0},
};

const struct route *route_table(void)
{
    return routes;
}
