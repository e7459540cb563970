export DFLASH_API_KEY="$(__KEY_COMMAND__)"
export OPENAI_API_BASE=__BASE_URL__
export OPENAI_API_KEY="$DFLASH_API_KEY"
# a file: aider ignores metadata from a pipe, without a word
metadata="$(mktemp)"
printf %s __AIDER_MODEL__ > "$metadata"
aider --model openai/__MODEL__ --model-metadata-file "$metadata" "$@"
rm "$metadata"
