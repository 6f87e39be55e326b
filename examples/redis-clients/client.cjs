// Limits of Tollgate from ioredis.
//
//     node client.cjs PORT PROTOCOL [TOKEN]
//
// Prints one line of JSON for each step.

const { Redis } = require("ioredis");

const [port, protocol, token] = process.argv.slice(2);
const client = new Redis({ port: Number(port), protocol: Number(protocol), password: token });
client.on("error", (error) => show("connection", error.message));

function show(step, value) {
  console.log(JSON.stringify({ step, value }));
}

// Two at once, then one every half hour.
async function throttle(key) {
  const [limited, , remaining, retry_after] = await client.call("CL.THROTTLE", key, 1, 2, 3600);
  return { limited: limited === 1, remaining, retry_after };
}

async function check(...attributes) {
  const [limited, rule, , remaining, retry_after_ms] = await client.call("TOLLGATE.CHECK", ...attributes);
  return { limited: limited === 1, rule, remaining, retry: retry_after_ms > 0 };
}

async function main() {
  show("ping", (await client.ping()) === "PONG");
  const upload = () => throttle("upload:42");
  show("throttle", [await upload(), await upload(), await upload()]);
  const login = () => check("method", "POST", "path", "/login", "user", "42");
  show("check", [await login(), await login()]);

  const pipeline = client.pipeline();
  for (const quantity of [2, 1, 0]) pipeline.call("CL.THROTTLE", "batch", 9, 10, 3600, quantity);
  show("pipeline", (await pipeline.exec()).map(([, reply]) => reply.slice(0, 3)));

  try {
    await client.call("CL.THROTTLE", "upload:42", "many", 2, 3600);
  } catch (error) {
    show("error", error.message.replace(/^ERR /, ""));
  }

  show("delete", await client.del("upload:42", "batch", "none"));
  show("throttle", [await upload()]);
  show("reset", await client.call("RESET"));
  client.disconnect();
}

main();
