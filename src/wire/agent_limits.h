/* Named limits of the agent protocol (docs/agent-protocol.md), shared by both ends. */
#pragma once

#define AGENT_VERSION 1U

#define AGENT_HEAD_BYTES    12U
#define AGENT_TAIL_BYTES    1U
#define AGENT_PAYLOAD_MAX   65536U
#define AGENT_FRAME_MAX     (AGENT_HEAD_BYTES + AGENT_PAYLOAD_MAX + AGENT_TAIL_BYTES)
#define AGENT_MAGIC_BYTES   16U
#define AGENT_NONCE_BYTES   16U
#define AGENT_ID_BYTES      16U /* machine_id and boot_id */
#define AGENT_ENTROPY_BYTES 64U

/* What the agent puts in one OUTPUT frame, head and tail included, so that control waits little. */
#define AGENT_OUTPUT_FRAME_MAX   32768U
#define AGENT_OUTPUT_FIELD_BYTES 9U /* stream and offset, before the bytes of OUTPUT */
#define AGENT_OUTPUT_DATA_MAX                                                                      \
    (AGENT_OUTPUT_FRAME_MAX - AGENT_HEAD_BYTES - AGENT_OUTPUT_FIELD_BYTES - AGENT_TAIL_BYTES)
/* What the host may put in one STDIN frame: the offset takes 8 bytes of the payload. */
#define AGENT_STDIN_DATA_MAX (AGENT_PAYLOAD_MAX - 8U)

#define AGENT_WINDOW       262144U /* bytes of a stream sent and not acknowledged, guest to host */
#define AGENT_STDIN_WINDOW 262144U /* the same, host to guest */

#define AGENT_START_MAX      1048576U /* a START's joined payloads */
#define AGENT_ARGV_MAX       4096U
#define AGENT_ARGV_BYTES     262144U /* lengths of all arguments together */
#define AGENT_STRING_BYTES   131071U /* one argument, or NAME=value: what Linux takes */
#define AGENT_ENV_MAX        256U
#define AGENT_ENV_BYTES      262144U
#define AGENT_CWD_BYTES      4096U
#define AGENT_USER_BYTES     256U
#define AGENT_TERM_BYTES     64U
#define AGENT_HOSTNAME_BYTES 63U
#define AGENT_PATH_BYTES     4096U
#define AGENT_FILE_DATA_MAX  49152U /* bytes of one WRITE_FILE */
/* An IDENTITY fits one frame, so its env is smaller than a START's. */
#define AGENT_IDENTITY_ENV_BYTES 32768U

/* Channels that the agent keeps, forgotten ones whose processes still run included. */
#define AGENT_CHANNELS_MAX 4096U
#define AGENT_SERVICES_MAX 512U /* at once */

/* Offset up to which the host believes that it has acknowledged output which it no longer has. */
#define AGENT_SKIP_MAX (1ULL << 60)

/* Resynchronisation by the host (section 2). */
#define AGENT_HELLO_FIRST_MS  100
#define AGENT_HELLO_REPEAT_MS 500
/* Zero bytes that complete any half-read frame and are then a bad head. */
#define AGENT_FLUSH_BYTES (AGENT_FRAME_MAX + AGENT_HEAD_BYTES)

/* After the exit of a process its pipes are read until end of file, or until no byte came for
 * this long, or for at most this long in all. */
#define AGENT_DRAIN_QUIET_MS 500
#define AGENT_DRAIN_TOTAL_MS 2000

#define AGENT_CONTROL_FRAMES_PER_SECOND 4096U
