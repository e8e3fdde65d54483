/* What the files that make up struct rest share: calls (rest.c) and upgraded connections
 * (tunnel.c). */
#pragma once

#include <curl/curl.h>

#include "cli/config.h"
#include "cli/rest.h"

#define REST_CONNECT_TIMEOUT_MS 10000L

struct curl_waitfd;

struct rest {
    CURLM *multi;
    char url[CONFIG_URL_SIZE];
    char key[CONFIG_KEY_SIZE];
    char ca_file[SETTINGS_PATH_SIZE];
    char socket_path[SETTINGS_PATH_SIZE + 32];
    int signal_fd;
    bool distrusts; /* the last failure was a certificate */
    bool may_have_arrived;
    bool has_news; /* a streaming callback ran since rest_poll began */
    json_t *last_error;
    struct curl_waitfd *waited; /* of rest_poll */
    unsigned int waited_room;
};

/* What every connection of r has in common: trust, proxy, time to connect. */
void rest_set_connection(const struct rest *r, struct rest_transfer *t);
/* Turns the answer in t (status and collected body) into err; -EREMOTEIO. */
int rest_refuse(struct rest *r, const struct rest_transfer *t, struct error *err);
