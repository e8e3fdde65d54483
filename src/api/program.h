/* space-api as a function: arguments, one context, the loop. */
#pragma once

/* Returns the exit status. */
int program_main(int argc, char **argv);
