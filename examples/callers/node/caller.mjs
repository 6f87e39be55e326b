// Asks Tollgate's decision API, with a deadline. Without an answer the caller fails open or closed.
//
//     echo '{"user":"42"}' | node caller.mjs open 100 http://127.0.0.1:8080 http://10.0.0.2:8080
//
// Reads a request from each line of stdin, and writes a verdict for each. Arguments: open or closed, the deadline in
// milliseconds, and the nodes, nearest first. Only what Node ships is used (18 or later).
import http from "node:http";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const MAX_REQUEST = 256 << 10; // bytes; Tollgate reads no more
const MAX_ANSWER = 1 << 20;
const REST_MS = 1000; // a node is left alone for so long after it has failed
const VERDICTS = [200, 403, 429, 503]; // allowed, banned, over the limit, a rule that fails closed
const REJECTED = [400, 413]; // a value that is invalid or too long: never a reason to fail open

/// An answer, but not one of Tollgate's, such as a load balancer's own 503.
class NoVerdict extends Error {}

export class Caller {
  #agent = new http.Agent({ keepAlive: true, maxFreeSockets: 64 });

  constructor(nodes, deadlineMs, failOpen) {
    this.nodes = nodes.map((node) => ({ url: new URL("/v1/check", node), restsUntil: 0 }));
    this.deadlineMs = deadlineMs;
    this.failOpen = failOpen;
  }

  /// Resolves to { allowed, decided, status, reason, retry_after_ms, delay_ms }, and does not reject. `decided`: by Tollgate;
  /// otherwise this is how the caller fails. `status` is for the client. Wait `delay_ms` before going on.
  async check(request) {
    const body = Buffer.from(JSON.stringify(request));
    if (body.length > MAX_REQUEST) return rejected(413, "the request is too long");
    const signal = AbortSignal.timeout(this.deadlineMs);
    let why = "every node failed less than a second ago";
    for (const node of this.nodes) {
      if (performance.now() < node.restsUntil) continue;
      try {
        return await this.#ask(node.url, body, signal);
      } catch (error) {
        why = signal.aborted ? "timed out" : error.message || error.code;
        if (!(error instanceof NoVerdict)) node.restsUntil = performance.now() + REST_MS;
        if (error.code !== "ECONNREFUSED") break; // nothing was sent only if the node refused the connection
      }
    }
    const status = this.failOpen ? 200 : 503;
    return { allowed: this.failOpen, decided: false, status, reason: why, retry_after_ms: null, delay_ms: 0 };
  }

  #ask(url, body, signal) {
    return new Promise((resolve, reject) => {
      const headers = { "content-type": "application/json", "content-length": body.length };
      const request = http.request(url, { method: "POST", agent: this.#agent, headers, signal }, (response) => {
        const parts = [];
        let length = 0;
        response.on("data", (part) => {
          length += part.length;
          if (length > MAX_ANSWER) request.destroy(new Error("the answer is too long"));
          else parts.push(part);
        });
        response.on("error", reject);
        response.on("end", () => {
          try {
            resolve(verdict(response.statusCode, Buffer.concat(parts).toString()));
          } catch (error) {
            reject(error);
          }
        });
      });
      request.on("error", (error) => {
        // The node closed a connection that was kept: once more, on another one.
        const stale = request.reusedSocket && ["ECONNRESET", "EPIPE"].includes(error.code) && !signal.aborted;
        if (stale) this.#ask(url, body, signal).then(resolve, reject);
        else reject(error);
      });
      request.end(body);
    });
  }
}

function rejected(status, reason) {
  return { allowed: false, decided: true, status, reason, retry_after_ms: null, delay_ms: 0 };
}

function verdict(status, body) {
  let told = null;
  try {
    told = JSON.parse(body);
  } catch {
    // not JSON: not Tollgate's
  }
  if (REJECTED.includes(status) && told?.detail) {
    return rejected(status, told.detail);
  }
  if (!VERDICTS.includes(status) || typeof told?.allowed !== "boolean") {
    throw new NoVerdict(`status ${status} without a verdict: ${body.slice(0, 200)}`);
  }
  const { allowed, reason, retry_after_ms, delay_ms } = told;
  return { allowed, decided: true, status, reason, retry_after_ms, delay_ms };
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const [failing, deadlineMs, ...nodes] = process.argv.slice(2);
  const caller = new Caller(nodes, Number(deadlineMs), failing === "open");
  for await (const line of createInterface({ input: process.stdin })) {
    console.log(JSON.stringify(await caller.check(JSON.parse(line))));
  }
  process.exit(); // connections that are kept would keep the process
}
