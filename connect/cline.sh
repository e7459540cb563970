export DFLASH_API_KEY="$(__KEY_COMMAND__)"
cline auth -p openai-compatible -k "$DFLASH_API_KEY" -m __MODEL__ -b __BASE_URL__
cline -P openai-compatible -m __MODEL__ "$@"
