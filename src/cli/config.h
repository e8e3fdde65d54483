/* Which API a command talks to, and with which key.
 *
 * Each of address and key comes from the first of: options (--url, --key-file), environment
 * (SPACE_URL, SPACE_API_KEY), the user's file (~/.config/space/config), the installation's settings
 * (api.listen, admin_key_file). A key that stands in a file goes only to the address of that same
 * file: `--url` never sends the installation's admin key elsewhere. */
#pragma once

#include "base/error.h"
#include "base/settings.h"

struct buf;

#define CONFIG_URL_SIZE 300
#define CONFIG_KEY_SIZE 300

struct config_input {
    const char *url;      /* --url, or NULL */
    const char *key_file; /* --key-file, or NULL */
    const char *env_url;
    const char *env_key;
    const char *user_file;           /* may not exist; NULL for none */
    const char *home;                /* what ~/ stands for, or NULL */
    const struct settings *settings; /* NULL: no installation here */
};

struct config {
    char url[CONFIG_URL_SIZE];                /* without a trailing slash */
    char key[CONFIG_KEY_SIZE];                /* "" when none was found */
    char ca_file[SETTINGS_PATH_SIZE];         /* "": the system's certificates */
    char key_problem[400];                    /* why there is no key, "" when nobody named one */
    char url_source[SETTINGS_PATH_SIZE + 32]; /* for messages */
};

/* A wrong value of an option is invalid_request with "--url" or "--key-file" as the field. */
int config_resolve(const struct config_input *in, struct config *ret, struct error *err)
    _must_check_;
/* Reads a key file: the first line that is neither blank nor a comment. Refused when the group or
 * others may read it. */
int config_read_key_file(const char *path, char ret_key[CONFIG_KEY_SIZE], struct error *err)
    _must_check_;
/* Whether an installation speaks plain HTTP on an address that other machines can reach. */
bool config_is_unprotected(const struct settings *s);
/* The URL of an installation, from api.listen; a wildcard address becomes the loopback one. */
int config_installation_url(const struct settings *s,
                            char ret_url[CONFIG_URL_SIZE],
                            struct error *err) _must_check_;
