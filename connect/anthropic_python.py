import os

from anthropic import Anthropic

client = Anthropic(base_url="__ROOT_URL__", api_key=os.environ["DFLASH_API_KEY"])
with client.messages.stream(
    model="__MODEL__",
    messages=[{"role": "user", "content": "What is the capital of France?"}],
    max_tokens=100,
) as stream:
    for text in stream.text_stream:
        print(text, end="", flush=True)
print()
