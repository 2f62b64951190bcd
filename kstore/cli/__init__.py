"""The kstore command, one file for each subcommand.

`main` loads a subcommand when it is called, and `command` ends it quietly when its reader goes away. A subcommand
parses its options, calls the library, and prints: what it computes lives below, in the library.

    words       options  extent  places  value_types
                what several commands take, with one spelling and one meaning (docs/commands.md)
    output      table  terminal  progress  json_fields  record_json  record_format  finding_text
    input       record_lines  producing
    work        spread  grep_run       several logs, or pieces of one, on all cores
    endings     command  interrupts

What a log holds never acts on the terminal: text passes through `terminal` on its way out.
"""
