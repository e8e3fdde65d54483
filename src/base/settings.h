/* The settings of an installation: one table, one file, read by every program.
 *
 * File format: `key = value` lines, blank lines and lines that start with `#` ignored; a value is
 * the rest of the line without surrounding blanks. An unknown key, a second occurrence or a value
 * out of range is an error that names the file, the line and the key.
 * Host-wide names (cgroups, namespaces, sockets, uid ranges) derive from `installation`, so two
 * installations with different files run beside each other. */
#pragma once

#include <stdint.h>

#include "base/error.h"

struct buf;

#define SETTINGS_PATH_SIZE    200
#define SETTINGS_DEFAULT_FILE "/etc/space/space.conf"

struct settings {
    uint64_t format;
    char installation[16];
    char data_dir[SETTINGS_PATH_SIZE];
    char run_dir[SETTINGS_PATH_SIZE];
    char log_dir[SETTINGS_PATH_SIZE];
    char log_level[16];
    char service_user[33];
    char admin_key_file[SETTINGS_PATH_SIZE];
    uint64_t volume_size_gib; /* 0: chosen from the free space */

    char api_listen[128]; /* ADDRESS:PORT */
    char api_tls_certificate[SETTINGS_PATH_SIZE];
    char api_tls_key[SETTINGS_PATH_SIZE];
    char api_domain[256];     /* below it are the ports of sandboxes */
    char api_public_url[256]; /* "": from the request's Host */
    uint64_t api_max_connections;
    uint64_t api_max_body_bytes;
    uint64_t api_key_concurrency;   /* requests at once per key */
    uint64_t api_key_streams;       /* event streams at once per key */
    uint64_t api_key_rate;          /* requests per second per key, refill */
    uint64_t api_key_burst;         /* requests */
    uint64_t api_header_timeout_ms; /* a request's head must be complete */
    uint64_t api_idle_timeout_ms;   /* an idle keep-alive connection, a stalled body */
    uint64_t api_operation_keep_hours;
    uint64_t api_operation_timeout_seconds;
    uint64_t api_unknown_checkpoint_seconds;
    uint64_t quota_sandboxes; /* per key; 0: none */
    uint64_t quota_vcpus;
    uint64_t quota_memory_mib;

    char node_name[64];
    char node_qemu[SETTINGS_PATH_SIZE]; /* path or name of the VMM */
    char node_accelerator[8];           /* auto, kvm or tcg */
    char node_cpu[16];                  /* host, x86-64-v2 or x86-64-v3 */
    uint64_t node_vmm_uid_first;
    uint64_t node_vmm_uid_count;
    uint64_t node_max_sandboxes;
    uint64_t node_memory_reserve_mib; /* 0: an eighth of RAM, 1 GiB at least */
    uint64_t node_memory_overcommit;  /* percent: 400 is 4 x */
    uint64_t node_disk_reserve_mib;   /* creates are refused below this free space */
    uint64_t node_boot_timeout_ms;
    uint64_t node_start_timeout_ms; /* restore and handshake of one sandbox */
    uint64_t node_silence_timeout_ms;
    uint64_t node_probe_timeout_ms;
    uint64_t node_prepared_pool; /* spawned VMMs that wait */
    char node_warm_pools[512];   /* "base=4,other=2"; "auto": 10 % of memory, 4 to 16 */
    uint64_t node_bases_per_template;
    uint64_t node_template_versions; /* made from checkpoints */
    uint64_t node_template_versions_per_key;
    uint64_t node_tcg_tb_mib;           /* of translated code, a VMM */
    uint64_t node_spool_bytes;          /* per session and stream */
    uint64_t node_session_keep_minutes; /* output kept after the end */
    uint64_t node_spool_total_mib;      /* per sandbox */
    uint64_t node_max_attached;         /* per sandbox; likewise the next three */
    uint64_t node_max_watches;
    uint64_t node_max_transfers;
    uint64_t node_max_connections;
    uint64_t node_metrics_interval_seconds;
    uint64_t node_metrics_keep_minutes;
    char objects_store[SETTINGS_PATH_SIZE]; /* "local", "none", a directory, "s3://BUCKET/PREFIX" */
    char objects_endpoint[256];
    char objects_region[64];
    char objects_keys_file[SETTINGS_PATH_SIZE];
    uint64_t objects_garbage_seconds;
    uint64_t node_max_processes; /* per sandbox, kept records included */
};

/* Fills s with the defaults. */
void settings_init(struct settings *s);
/* Reads a file over the defaults. A missing file is -ENOENT. */
int settings_load(struct settings *s, const char *path, struct error *err) _must_check_;
/* Parses text (`name` stands for it in messages) over what s holds. */
int settings_parse(struct settings *s, const char *text, const char *name, struct error *err)
    _must_check_;
/* The commented file with all keys and these values, as deploy/space.conf has it. */
void settings_format(const struct settings *s, struct buf *out);
/* Sets one key. -EINVAL with err for a bad value, -ENOENT for an unknown key. */
int settings_set(struct settings *s, const char *key, const char *value, struct error *err)
    _must_check_;
