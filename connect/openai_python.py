import os

from openai import OpenAI

client = OpenAI(base_url="__BASE_URL__", api_key=os.environ["DFLASH_API_KEY"])
stream = client.chat.completions.create(
    model="__MODEL__",
    messages=[{"role": "user", "content": "What is the capital of France?"}],
    max_tokens=100,
    stream=True,
)
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
print()
