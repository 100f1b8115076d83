// graphile-worker, as an application uses it: N workers, each a runner with a pool of
// its own as in N processes, and those who add jobs. ../run says what to do on standard
// input; see there.

import { Logger, makeWorkerUtils, run } from "graphile-worker";
import pg from "pg";
import readline from "node:readline";

const WORKERS = Number(process.argv[2]);
const logger = new Logger(() => () => {});
const started = []; // for each job, how long it took to start, in milliseconds
let done = 0;
let held = 0;
let release;
const released = new Promise((resolve) => { release = resolve; });

const now = () => Number(process.hrtime.bigint()) / 1e6;
const sleep = (msec) => new Promise((resolve) => setTimeout(resolve, msec));
const newPool = (max) => {
  const pool = new pg.Pool({ max });
  pool.on("error", () => {});
  return pool;
};

// The steady phase: a job every so often. What counts is when it was due, so that a
// delay of the one who adds is not left out.
async function steady(utils, rate, seconds) {
  const jobs = Math.round(rate * seconds);
  const begin = now();
  const added = [];
  started.length = 0;
  for (let i = 0; i < jobs; i++) {
    const due = begin + (i * 1000) / rate;
    await sleep(due - now());
    added.push(utils.addJob("steady", { due }));
  }
  await Promise.all(added);
  const deadline = now() + 10000;
  while (started.length < jobs && now() < deadline) await sleep(10);
  return { jobs, latency_msec: started, seconds: (now() - begin) / 1000 };
}

// The flood: four who add jobs one after another, as fast as they are let.
async function flood(utils, seconds) {
  release();
  const begin = now();
  let enqueued = 0;
  done = 0;
  await Promise.all(
    [1, 2, 3, 4].map(async () => {
      while (now() < begin + seconds * 1000) {
        await utils.addJob("flood", {});
        enqueued++;
      }
    }),
  );
  return { enqueued, done, seconds: (now() - begin) / 1000 };
}

// Keep this many workers busy, until the flood.
async function hold(utils, workers) {
  for (let i = 0; i < workers; i++) await utils.addJob("hold", {});
  const deadline = now() + 10000;
  while (held < workers && now() < deadline) await sleep(10);
  return { held };
}

const utils = await makeWorkerUtils({ pgPool: newPool(4), logger });
await utils.migrate();
const taskList = {
  steady: async (payload) => { started.push(now() - payload.due); },
  flood: async () => { done++; },
  hold: async () => { held++; await released; },
};
for (let i = 0; i < WORKERS; i++) {
  await run({
    pgPool: newPool(3), concurrency: 1, pollInterval: 60000, noHandleSignals: true,
    logger, taskList,
  });
}
console.log("ready");
for await (const line of readline.createInterface({ input: process.stdin })) {
  const [phase, ...numbers] = line.split(" ");
  const result = await { hold, steady, flood }[phase](utils, ...numbers.map(Number));
  console.log(JSON.stringify(result));
}
process.exit(0);
