import OpenAI from "openai";

const client = new OpenAI({ baseURL: "__BASE_URL__", apiKey: process.env.DFLASH_API_KEY });
const stream = await client.chat.completions.create({
  model: "__MODEL__",
  messages: [{ role: "user", content: "What is the capital of France?" }],
  max_tokens: 100,
  stream: true,
});
for await (const chunk of stream) {
  process.stdout.write(chunk.choices[0]?.delta?.content ?? "");
}
console.log();
