import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: "__ROOT_URL__", apiKey: process.env.DFLASH_API_KEY, authToken: null });
const stream = await client.messages.create({
  model: "__MODEL__",
  messages: [{ role: "user", content: "What is the capital of France?" }],
  max_tokens: 100,
  stream: true,
});
for await (const event of stream) {
  if (event.type === "content_block_delta" && event.delta.type === "text_delta") {
    process.stdout.write(event.delta.text);
  }
}
console.log();
