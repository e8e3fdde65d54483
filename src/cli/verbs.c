#include "cli/verbs.h"

#include "cli/commands.h"

#define OPTIONS_END                                                                                \
    {                                                                                              \
        NULL, 0, NULL, NULL                                                                        \
    }
#define OPTION_JSON                                                                                \
    {                                                                                              \
        "json", 0, NULL, "print the API's own JSON, one document"                                  \
    }
#define OPTION_YES                                                                                 \
    {                                                                                              \
        "yes", 'y', NULL, "do not ask"                                                             \
    }
#define OPTION_TTY                                                                                 \
    {                                                                                              \
        "tty", 't', NULL, "give it a terminal, of the size of this one"                            \
    }

const struct option_spec cli_globals[] = {
    {"config", 0, "FILE", "settings file of the installation (SPACE_CONFIG)"},
    {"url", 0, "URL", "address of the API (SPACE_URL)"},
    {"key-file", 0, "FILE",
     "file with the API key, mode 0600 (or the key itself in SPACE_API_KEY)"},
    {"help", 'h', NULL, "print help"},
    {"version", 0, NULL, "print the version"},
    OPTIONS_END,
};

#define OPTIONS_CREATE                                                                             \
    {"name", 'n', "NAME", "name of the sandbox: a-z, 0-9 and -"},                                  \
        {"env", 'e', "NAME=VALUE", "environment variable; may be repeated"},                       \
        {"vcpus", 0, "N", "virtual CPUs"}, {"memory", 'm', "SIZE", "memory: 512 (MiB), 512m, 2g"}, \
        {"disk", 0, "SIZE", "disk; not smaller than the template's"}, OPTIONS_LIFECYCLE

/* Labels and rules. */
#define OPTIONS_LIFECYCLE                                                                          \
    {"metadata", 0, "NAME=VALUE", "a label of yours; may be repeated"},                            \
        {"lifetime", 0, "TIME", "delete the sandbox after 30 (seconds), 5m, 2h, 7d"},              \
        {"idle-timeout", 0, "TIME",                                                                \
         "act when it was not used for so long while it ran (default 6h), or none"},               \
        {"idle-action", 0, "ACTION", "what to do then: suspend (default), pause or delete"},       \
        {"keep-suspended", 0, "TIME", "delete it when it was suspended for so long"},              \
    {                                                                                              \
        "no-auto-wake", 0, NULL, "calls do not wake it when it is paused or suspended"             \
    }

static const struct option_spec up_options[] = {
    {"timeout", 0, "TIME", "wait so long for readiness (default 3m)"},
    OPTIONS_END,
};

static const struct option_spec down_options[] = {
    {"keep-sandboxes", 0, NULL, "stop the daemons only; `space up` takes the sandboxes over again"},
    OPTIONS_END,
};

static const struct option_spec json_options[] = {OPTION_JSON, OPTIONS_END};

static const struct option_spec doctor_options[] = {
    {"bundle", 0, "FILE", "also pack logs, settings and states, without secrets, into a .tar.gz"},
    OPTION_JSON,
    OPTIONS_END,
};

static const struct option_spec run_options[] = {
    OPTIONS_CREATE,
    {"workdir", 'w', "DIR", "directory to run in"},
    {"user", 'u', "USER", "user to run as (default: the template's)"},
    {"timeout", 0, "TIME", "kill the command after so long; the exit status is then 124"},
    {"interactive", 'i', NULL, "forward standard input"},
    {"keep", 0, NULL, "keep the sandbox afterwards"},
    {"json", 0, NULL, "answer at the end with the API's result (one call; output is capped)"},
    OPTION_TTY,
    OPTIONS_END,
};

static const struct option_spec create_options[] = {
    OPTIONS_CREATE,
    {"checkpoint", 0, "CHECKPOINT", "go on from there, instead of a template"},
    {"no-wait", 0, NULL, "do not wait until it runs"},
    OPTION_JSON,
    OPTIONS_END,
};

static const struct option_spec ls_options[] = {
    {"state", 0, "STATE", "only sandboxes in this state; may be repeated"},
    {"template", 0, "NAME", "only of this template"},
    {"name", 'n', "NAME", "only the one with this name"},
    {"metadata", 0, "NAME=VALUE", "only with this label; may be repeated"},
    {"limit", 0, "N", "at most so many, the newest"},
    {"quiet", 'q', NULL, "print ids only"},
    OPTION_JSON,
    OPTIONS_END,
};

static const struct option_spec fork_options[] = {
    {"count", 'c', "N", "so many, 1 to 100 (default 1)"},
    {"name", 'n', "NAME", "name of the new sandbox, if it is one: a-z, 0-9 and -"},
    {"env", 'e', "NAME=VALUE", "environment variable, over those of the sandbox; may be repeated"},
    OPTIONS_LIFECYCLE,
    OPTION_JSON,
    OPTIONS_END,
};

static const struct option_spec templates_options[] = {
    {"checkpoint", 0, "CHECKPOINT", "of create: what the template is made of"},
    OPTION_YES,
    OPTION_JSON,
    OPTIONS_END,
};

static const struct option_spec checkpoint_options[] = {
    {"name", 'n', "NAME", "of create: a word of yours for it"},
    {"disk-only", 0, NULL, "of create: without memory; sandboxes made from it boot"},
    OPTION_YES,
    OPTION_JSON,
    OPTIONS_END,
};

static const struct option_spec rm_options[] = {OPTION_YES, OPTION_JSON, OPTIONS_END};

static const struct option_spec exec_options[] = {
    {"env", 'e', "NAME=VALUE", "environment variable; may be repeated"},
    {"workdir", 'w', "DIR", "directory to run in"},
    {"user", 'u', "USER", "user to run as (default: the template's)"},
    {"timeout", 0, "TIME", "kill the command after so long; the exit status is then 124"},
    {"interactive", 'i', NULL, "forward standard input"},
    {"detach", 'd', NULL, "print the process id and leave it running"},
    {"json", 0, NULL, "answer at the end with the API's result (output is capped)"},
    OPTION_TTY,
    OPTIONS_END,
};

static const struct option_spec shell_options[] = {
    {"env", 'e', "NAME=VALUE", "environment variable; may be repeated"},
    {"workdir", 'w', "DIR", "directory to begin in"},
    {"user", 'u', "USER", "whose shell (default: the template's user)"},
    OPTIONS_END,
};

static const struct option_spec attach_options[] = {
    {"interactive", 'i', NULL, "forward standard input (a terminal's is forwarded in any case)"},
    {"tail", 0, "BYTES",
     "begin so many bytes before the end of the output (default 4096; a "
     "terminal begins at its end)"},
    OPTIONS_END,
};

static const struct option_spec signal_options[] = {
    {"scope", 0, "SCOPE", "group (default), process or tree"},
    OPTION_JSON,
    OPTIONS_END,
};

static const struct option_spec logs_options[] = {
    {"follow", 'f', NULL, "go on until the process ends"},
    {"tail", 0, "BYTES", "begin so many bytes before the end"},
    OPTIONS_END,
};

static const struct option_spec forward_options[] = {
    {"address", 0, "ADDRESS", "listen on this address of this machine (default 127.0.0.1)"},
    OPTION_JSON,
    OPTIONS_END,
};

static const struct option_spec cp_options[] = {
    {"user", 'u', "USER",
     "with the rights of this user, who owns what is made (default: the template's)"},
    OPTION_JSON,
    OPTIONS_END,
};

static const struct option_spec watch_options[] = {
    {"flat", 0, NULL, "not what is in directories below"},
    {"user", 'u', "USER", "with the rights of this user (default: the template's)"},
    {"json", 0, NULL, "a JSON object per change, one a line"},
    OPTIONS_END,
};

static const struct option_spec ports_options[] = {
    {"public", 0, "PORT", "let everybody reach this port at its address"},
    {"private", 0, "PORT", "only with a key or token again (the default)"},
    {"link", 0, "PORT", "print an address that a browser can open, with a token in it"},
    {"ttl", 0, "TIME", "how long the token of --link lets in (default 5m, at most 1d)"},
    OPTION_JSON,
    OPTIONS_END,
};

static const struct option_spec stats_options[] = {
    {"last", 0, "TIME", "all samples of this time: 10m, 1h"},
    OPTION_JSON,
    OPTIONS_END,
};

static const struct option_spec keys_options[] = {
    {"role", 0, "ROLE", "of the new key: admin, member (default) or read"},
    {"out", 'o', "FILE", "file for the new key; must not exist, gets mode 0600"},
    {"owner", 0, "USER", "whose file it becomes, as root (default: who called sudo)"},
    {"expires", 0, "TIME", "when it ends: 30d from now, or 2027-01-31T00:00:00Z"},
    OPTION_JSON,
    OPTIONS_END,
};

static const struct option_spec node_options[] = {
    {"wait", 0, NULL, "of drain: until nothing runs on it"},
    OPTION_JSON,
    OPTIONS_END,
};

static const struct option_spec help_options[] = {
    {"man", 0, NULL, NULL},
    {"man-settings", 0, NULL, NULL},
    OPTIONS_END,
};

static const struct option_spec no_options[] = {OPTIONS_END};

const struct verb cli_verbs[] = {
    {"up", VERB_GROUP_INSTALLATION, "",
     "start the installation on this machine, or what of it is missing",
     "Mounts the data volume, makes the first API key when there is none, starts space-node and\n"
     "space-api (by systemd where it runs, else under space-supervisor) and waits until they are\n"
     "ready. What runs already is left alone, unless its program or settings are newer than it:\n"
     "then it is restarted, and sandboxes live on. Needs root.\n",
     "space up\nspace up --config /etc/space/second.conf\n", up_options, 0, 0, VERB_COMMAND_NONE,
     VERB_WORDS_OTHER, cmd_up},
    {"down", VERB_GROUP_INSTALLATION, "", "stop the installation and its sandboxes",
     "Stops space-api, space-node and every sandbox, and releases the data volume. What is\n"
     "suspended goes on after the next `space up` and a wake; a sandbox that runs or is paused\n"
     "becomes state error with code host_restarted: a wake boots it from its disk, and what ran\n"
     "in it is lost. `space node drain --wait` before it suspends them all. With --keep-sandboxes\n"
     "the VMs run on without daemons. Needs root.\n",
     "space node drain --wait && space down\nspace down --keep-sandboxes\nspace down\n",
     down_options, 0, 0, VERB_COMMAND_NONE, VERB_WORDS_OTHER, cmd_down},
    {"status", VERB_GROUP_INSTALLATION, "", "what runs, and what it uses",
     "Daemons, readiness, accelerator, sandboxes, pools, memory and disk. As root on the machine\n"
     "it asks the node itself; elsewhere it shows what the API tells. Exit status 1 when "
     "something\n"
     "is not well.\n",
     "space status\nspace status --json\n", json_options, 0, 0, VERB_COMMAND_NONE, VERB_WORDS_OTHER,
     cmd_status},
    {"doctor", VERB_GROUP_INSTALLATION, "", "check this machine: what is degraded, and the remedy",
     "Every check is ok, degraded (it works, less well) or missing (it cannot work), with what to\n"
     "do about it. Exit status 1 when something is missing. --bundle packs what a bug report\n"
     "needs; keys, tokens and environment values are left out.\n",
     "space doctor\nspace doctor --bundle /tmp/space.tar.gz\n", doctor_options, 0, 0,
     VERB_COMMAND_NONE, VERB_WORDS_OTHER, cmd_doctor},
    {"version", VERB_GROUP_INSTALLATION, "", "versions of this program and of the server", "",
     "space version\n", json_options, 0, 0, VERB_COMMAND_NONE, VERB_WORDS_OTHER, cmd_version},
    {"env", VERB_GROUP_INSTALLATION, "",
     "print the shell lines that set SPACE_URL and SPACE_API_KEY",
     "The lines hold the API key: give them to eval, not to a log.\n", "eval \"$(space env)\"\n",
     no_options, 0, 0, VERB_COMMAND_NONE, VERB_WORDS_OTHER, cmd_env},

    {"run", VERB_GROUP_SANDBOX, "[TEMPLATE] [OPTIONS] -- COMMAND…",
     "run a command in a sandbox of its own, and delete it afterwards",
     "Output appears as it comes, and the exit status is the command's: 128+n when signal n ended\n"
     "it, 124 when --timeout did, 125 when SPACE failed. Ctrl-C interrupts the command, a second\n"
     "one kills it; the sandbox is deleted in any case, unless --keep. The template is base by\n"
     "default. --env goes to the sandbox, so a kept one has it too.\n",
     "space run -- python3 -c 'print(6*7)'\n"
     "space run base --memory 2g -e LANG=C -- make -j2\n",
     run_options, 0, 1, VERB_COMMAND_DASHES, VERB_WORDS_TEMPLATE, cmd_run},
    {"create", VERB_GROUP_SANDBOX, "TEMPLATE | --checkpoint CHECKPOINT",
     "make a sandbox and print its id", "",
     "space create base\nspace create base --name build-42 --vcpus 2 --memory 2g --metadata "
     "team=a\nspace create --checkpoint ck6t3v9n2k8x4h7m5q2w\n",
     create_options, 0, 1, VERB_COMMAND_NONE, VERB_WORDS_TEMPLATE, cmd_create},
    {"ls", VERB_GROUP_SANDBOX, "[OPTIONS]", "list sandboxes, newest first", "",
     "space ls\nspace ls --state running --metadata team=a\nspace rm --yes $(space ls -q)\n",
     ls_options, 0, 0, VERB_COMMAND_NONE, VERB_WORDS_OTHER, cmd_ls},
    {"show", VERB_GROUP_SANDBOX, "SANDBOX", "everything about one sandbox", "",
     "space show build-42\n", json_options, 1, 1, VERB_COMMAND_NONE, VERB_WORDS_SANDBOX, cmd_show},
    {"stats", VERB_GROUP_SANDBOX, "SANDBOX [OPTIONS]", "what a sandbox uses: CPU, memory, disk", "",
     "space stats build-42\nspace stats build-42 --last 10m\n", stats_options, 1, 1,
     VERB_COMMAND_NONE, VERB_WORDS_SANDBOX, cmd_stats},
    {"pause", VERB_GROUP_SANDBOX, "SANDBOX…", "stop sandboxes, with everything in memory",
     "A paused one uses no processor, and keeps its memory, ports and sessions. What is under way\n"
     "goes on when it wakes: by `space wake`, or when it is used, unless --no-auto-wake.\n",
     "space pause build-42\n", json_options, 1, 1000000, VERB_COMMAND_NONE, VERB_WORDS_SANDBOX,
     cmd_pause},
    {"suspend", VERB_GROUP_SANDBOX, "SANDBOX…", "write sandboxes to disk, and free their memory",
     "A suspended one costs disk space only. Processes, open files, terminals and output are "
     "kept,\n"
     "and go on when it wakes: by `space wake`, or when it is used, unless --no-auto-wake.\n"
     "Connections to ports and transfers of files end. It happens by itself after the\n"
     "--idle-timeout.\n",
     "space suspend build-42\n", json_options, 1, 1000000, VERB_COMMAND_NONE, VERB_WORDS_SANDBOX,
     cmd_suspend},
    {"wake", VERB_GROUP_SANDBOX, "SANDBOX…",
     "let paused or suspended sandboxes go on, start failed ones again",
     "One in state error is booted from the disk that it has left, with its files and without\n"
     "the processes that ran; that is done by this command alone.\n",
     "space wake build-42\n", json_options, 1, 1000000, VERB_COMMAND_NONE, VERB_WORDS_SANDBOX,
     cmd_wake},
    {"fork", VERB_GROUP_SANDBOX, "SANDBOX [OPTIONS]",
     "make sandboxes that go on where a sandbox is now, and print their ids",
     "Each has the memory, the processes and the disk of this moment, and an identity of its own:\n"
     "hostname, machine-id, entropy, clock. The sandbox itself goes on, or stays paused or\n"
     "suspended. Labels and rules are those of the sandbox unless given here. Children that could\n"
     "not be made are named on standard error, and the status is 1 then.\n",
     "space fork build-42\nspace fork build-42 --count 10 --metadata try=2\n"
     "for s in $(space fork build-42 -c 3); do space exec \"$s\" -- hostname; done\n",
     fork_options, 1, 1, VERB_COMMAND_NONE, VERB_WORDS_SANDBOX, cmd_fork},
    {"checkpoint", VERB_GROUP_SANDBOX, "create SANDBOX | ls [SANDBOX] | rm CHECKPOINT…",
     "keep a moment of a sandbox, to go back to or make others from",
     "create prints the id of the checkpoint; the sandbox goes on. It has memory, processes and "
     "disk,\n"
     "or with --disk-only the disk, and outlives its sandbox; ls without SANDBOX lists all. "
     "CHECKPOINT\nis an id, or a name that only one has. rm asks on a terminal, unless --yes.\n",
     "space checkpoint create build-42 --name clean\nspace checkpoint ls build-42\n"
     "space create --checkpoint $(space checkpoint create build-42)\n",
     checkpoint_options, 1, 1000000, VERB_COMMAND_NONE, VERB_WORDS_OTHER, cmd_checkpoint},
    {"rollback", VERB_GROUP_SANDBOX, "SANDBOX CHECKPOINT",
     "put a sandbox back to a checkpoint of it",
     "Memory, processes and disk are those of the checkpoint; what the sandbox did since is lost.\n"
     "Asks on a terminal, unless --yes.\n",
     "space rollback build-42 ck6t3v9n2k8x4h7m5q2w\nspace rollback build-42 clean\n", rm_options, 2,
     2, VERB_COMMAND_NONE, VERB_WORDS_SANDBOX, cmd_rollback},
    {"rm", VERB_GROUP_SANDBOX, "SANDBOX…", "delete sandboxes, in whatever state they are",
     "Asks on a terminal, unless --yes.\n", "space rm build-42\n", rm_options, 1, 1000000,
     VERB_COMMAND_NONE, VERB_WORDS_SANDBOX, cmd_rm},

    {"exec", VERB_GROUP_PROCESS, "SANDBOX [OPTIONS] -- COMMAND…", "run a command in a sandbox",
     "Output, exit status and Ctrl-C as for run. A broken connection is taken up again where it\n"
     "broke; when that fails for a minute the command is left running and the status is 125.\n",
     "space exec build-42 -- ls -l\nspace exec -it build-42 -- top\n"
     "tar c src | space exec -i build-42 -- tar x\n"
     "space exec -d build-42 -- python3 -m http.server\n",
     exec_options, 1, 1, VERB_COMMAND_REST, VERB_WORDS_SANDBOX, cmd_exec},
    {"shell", VERB_GROUP_PROCESS, "SANDBOX [OPTIONS]", "log in to a sandbox, as ssh does",
     "The user's login shell, on a terminal when standard input and output are one; else it reads\n"
     "commands from standard input. A lost connection is made again and nothing is lost. The exit\n"
     "status is the shell's. `~.` after Enter leaves it running, `space attach` returns to it.\n",
     "space shell build-42\nspace shell -u root build-42\necho make | space shell build-42\n",
     shell_options, 1, 1, VERB_COMMAND_NONE, VERB_WORDS_SANDBOX, cmd_shell},
    {"attach", VERB_GROUP_PROCESS, "[SANDBOX] PROCESS", "go back to a command that runs",
     "Its output from now on (and a little from before), signals and exit status as for exec. A\n"
     "command with a terminal gets this one; press Enter or Ctrl-L when it does not redraw.\n",
     "space attach pr4kq7m2xwa3h5v8c2t9\n", attach_options, 1, 2, VERB_COMMAND_NONE,
     VERB_WORDS_SANDBOX, cmd_attach},
    {"ps", VERB_GROUP_PROCESS, "SANDBOX", "commands of a sandbox, running and ended", "",
     "space ps build-42\n", json_options, 1, 1, VERB_COMMAND_NONE, VERB_WORDS_SANDBOX, cmd_ps},
    {"signal", VERB_GROUP_PROCESS, "[SANDBOX] PROCESS SIGNAL", "send a signal to a command",
     "SANDBOX may be left out: process ids are unique.\n",
     "space signal pr4kq7m2xwa3h5v8c2t9 SIGHUP\n", signal_options, 2, 3, VERB_COMMAND_NONE,
     VERB_WORDS_SANDBOX, cmd_signal},
    {"kill", VERB_GROUP_PROCESS, "[SANDBOX] PROCESS…", "kill commands with all their children", "",
     "space kill pr4kq7m2xwa3h5v8c2t9\n", json_options, 1, 1000000, VERB_COMMAND_NONE,
     VERB_WORDS_SANDBOX, cmd_kill},
    {"logs", VERB_GROUP_PROCESS, "[SANDBOX] PROCESS|SESSION", "output of a command",
     "Without --follow: what is kept now, first stdout, then stderr. With it: in the order in\n"
     "which it came, until the command ends.\n",
     "space logs pr4kq7m2xwa3h5v8c2t9\nspace logs --follow --tail 4096 se4kq7m2xwz6b4q8n3d7\n",
     logs_options, 1, 2, VERB_COMMAND_NONE, VERB_WORDS_SANDBOX, cmd_logs},

    {"cp", VERB_GROUP_NETWORK, "SANDBOX:PATH LOCAL|-  |  LOCAL|- SANDBOX:PATH",
     "copy files and directories into a sandbox or out of it",
     "As docker cp: into a directory that exists a copy gets the source's name, else it gets the\n"
     "target's; DIR/. means what is in DIR. - is a tar archive on standard input or output. "
     "Modes,\n"
     "times and symbolic links are kept; links are never followed on this machine, and devices,\n"
     "pipes, sockets and set-user-id bits never leave a sandbox. Exit status 1 when something was\n"
     "left out.\n",
     "space cp src build-42:/home/user/\nspace cp build-42:/home/user/out.txt .\n"
     "space cp build-42:/var/log - | tar tv\n",
     cp_options, 2, 2, VERB_COMMAND_NONE, VERB_WORDS_COPY, cmd_cp},
    {"watch", VERB_GROUP_NETWORK, "SANDBOX [PATH]", "print changes of files as they happen",
     "Watches a directory and all below it: created, modified, deleted, moved. PATH is the\n"
     "user's home by default. A broken connection is taken up where it broke; \"overflow\" says\n"
     "that changes were lost all the same.\n",
     "space watch build-42 /home/user/src\nspace watch --json build-42 | jq .path\n", watch_options,
     1, 2, VERB_COMMAND_NONE, VERB_WORDS_SANDBOX, cmd_watch},
    {"ports", VERB_GROUP_NETWORK, "SANDBOX [OPTIONS]", "what listens in a sandbox, and its address",
     "A port is private by default: its address asks for a key or a token. --link makes such a\n"
     "token and prints the address with it; give that only to whom it is meant for.\n",
     "space ports build-42\nspace ports build-42 --link 8000 --ttl 1h\n"
     "space ports build-42 --public 8000\n",
     ports_options, 1, 1, VERB_COMMAND_NONE, VERB_WORDS_SANDBOX, cmd_ports},
    {"forward", VERB_GROUP_NETWORK, "SANDBOX [LOCAL:]PORT…",
     "reach ports of a sandbox on this machine",
     "Listens on 127.0.0.1, prints the address, and carries each connection to the port in the\n"
     "sandbox (of 127.0.0.1 there, too), until Ctrl-C. LOCAL is another port on this side; 0\n"
     "takes a free one.\n",
     "space forward build-42 8000\nspace forward build-42 9000:80 0:5432\n", forward_options, 2,
     1000000, VERB_COMMAND_NONE, VERB_WORDS_SANDBOX, cmd_forward},

    {"templates", VERB_GROUP_ADMIN,
     "[NAME | ls [NAME] | create NAME --checkpoint CHECKPOINT | rm NAME[@VERSION]…]",
     "templates that sandboxes can be made from",
     "create makes a template of a checkpoint and prints NAME@VERSION; of a name that is there\n"
     "already it makes a newer version, which is the one that NAME means from then on. Sandboxes "
     "of\n"
     "a checkpoint with memory go on with its processes, those of a disk-only one boot. The\n"
     "checkpoint is not needed any more. ls NAME lists all versions. rm takes all of a name, or "
     "one\n"
     "version; sandboxes that were made from them stay. What the set-up has built stays too.\n",
     "space templates\nspace templates create tools --checkpoint ck6t3v9n2k8x4h7m5q2w\n"
     "space create tools\nspace templates ls tools\nspace templates rm tools\n",
     templates_options, 0, 1000000, VERB_COMMAND_NONE, VERB_WORDS_TEMPLATE, cmd_templates},
    {"keys", VERB_GROUP_ADMIN, "[ls | create [NAME] --out FILE | rm KEY…]", "API keys",
     "create writes the new key into FILE, mode 0600; it is shown nowhere else and never again.\n"
     "Under sudo the file belongs to who called it, or to --owner USER.\n"
     "Roles: admin manages keys, member works with sandboxes, read only looks. Needs an admin "
     "key;\n"
     "root on the installation's machine can make one without.\n",
     "space keys\nspace keys create ci --role member --expires 90d --out ci.key\n"
     "sudo space keys create alice --owner alice --out /home/alice/space.key\n"
     "space keys rm ky7n3c8x5h2v9q4t6m8b\n",
     keys_options, 0, 1000000, VERB_COMMAND_NONE, VERB_WORDS_OTHER, cmd_keys},
    {"node", VERB_GROUP_ADMIN, "[ls | drain [NODE] [--wait] | undrain [NODE]]",
     "empty a machine before maintenance, and use it again",
     "drain makes and wakes no sandbox on the node any more and suspends those that run; nothing\n"
     "is lost when the machine is then stopped. undrain takes that back; the sandboxes wake when\n"
     "they are used. NODE is the only one by default. Needs an admin key.\n",
     "space node\nspace node drain --wait && space down\nspace up && space node undrain\n",
     node_options, 0, 2, VERB_COMMAND_NONE, VERB_WORDS_OTHER, cmd_node},
    {"help", VERB_GROUP_ADMIN, "[VERB]", "this list, or the help of a verb", "", "space help run\n",
     help_options, 0, 1, VERB_COMMAND_NONE, VERB_WORDS_VERB, cmd_help},
    {"__complete", VERB_GROUP_COUNT, "-- WORDS…", "", "", "", no_options, 0, 0, VERB_COMMAND_DASHES,
     VERB_WORDS_OTHER, cmd_complete},
    {NULL, VERB_GROUP_COUNT, NULL, NULL, NULL, NULL, NULL, 0, 0, VERB_COMMAND_NONE,
     VERB_WORDS_OTHER, NULL},
};
