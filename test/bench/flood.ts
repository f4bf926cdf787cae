import { type ChildProcess, fork } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { Agent, request } from 'node:http';
import { connect, type Socket } from 'node:net';
import { setPriority } from 'node:os';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { openDatabase } from '../../db/connection/client.ts';
import { openTestDatabase } from '../support/database.ts';
import { openOrganization } from '../support/organization.ts';
import { startApiProcess } from '../support/programs.ts';
import { startServers } from '../support/servers.ts';

// `node test/bench/flood.ts [SECONDS]`: measures the latency of one organization before and during
// attacks that flood one API process, and the memory of that process. The attackers run in their
// own process, which reports the responses they get. The measured organization reads its credits
// over one connection, one request after the other.

const SECONDS = Number(process.argv[2] ?? 6);
const IDLE_SOCKETS = 5000;
const BULKS = 90;

const KEYLESS = 'GET /api/v1/credits HTTP/1.1\r\nHost: x\r\n\r\n';

/** Attacks on the API at a port. The name is the first argument of the attacker's process. */
const ATTACKS: Readonly<Record<string, (port: number, apiKey: string) => unknown>> = {
  '20,000 pipelined requests without a key': (port) =>
    pipeline(port, KEYLESS.repeat(20_000)),
  '8 connections at full speed, one request at a time': (port) =>
    repeatedly(port, 8, KEYLESS),
  '8 connections at full speed, pipelined': (port) =>
    repeatedly(port, 8, KEYLESS.repeat(1000)),
  '5,000 idle connections': (port) =>
    Array.from({ length: IDLE_SOCKETS }, () => open(port)),
  '90 bulks of one organization at once, again and again': async (port, apiKey) => {
    for (;;)
      await Promise.allSettled(
        Array.from({ length: BULKS }, (_, index) => bulk(port, apiKey, index)),
      );
  },
};

const [, , attack = '', port, apiKey = ''] = process.argv;
const responded: Record<string, number> = {};
if (process.send) {
  setInterval(() => process.send?.(responded), 500);
  await ATTACKS[attack]?.(Number(port), apiKey);
} else await measure();

async function measure(): Promise<void> {
  const stopServers = await startServers();
  const { url, [Symbol.asyncDispose]: drop } = await openTestDatabase();
  const db = openDatabase({ url, poolSize: 2, applicationName: 'bench' });
  const victim = await openOrganization(db, 0);
  const attacker = await openOrganization(db, 100_000_000);
  // No Temporal listens here, so no worker processes the bulks.
  const api = await startApiProcess(url, { TEMPORAL_ADDRESS: '127.0.0.1:1' });
  const port = new URL(api.url).port;
  // Real clients run on other machines. This process must not wait for the CPU.
  setPriority(-15);
  await sample(port, victim.apiKey, SECONDS);
  for (const name of Object.keys(ATTACKS)) {
    const quiet = await sample(port, victim.apiKey, SECONDS);
    const child = fork(fileURLToPath(import.meta.url), [name, port, attacker.apiKey]);
    setPriority(child.pid ?? 0, 0);
    let told = {};
    child.on('message', (message: object) => {
      told = message;
    });
    // The attacker sends a message once its attack is running.
    await new Promise((resolve) => child.once('message', resolve));
    await delay(1000);
    const cpuBefore = cpuMs(api.pid());
    const flooded = await sample(port, victim.apiKey, SECONDS);
    const cpu = ((cpuMs(api.pid()) - cpuBefore) / SECONDS / 10).toFixed(0);
    const memory = peakMb(api.pid());
    await end(child);
    await delay(2000);
    const after = await sample(port, victim.apiKey, SECONDS);
    const times = ({ p50, p95 }: Sample) => `${p50.toFixed(1)} / ${p95.toFixed(1)} ms`;
    const ratio = ({ p95 }: Sample) => (p95 / quiet.p95).toFixed(1);
    console.log(`${name}:
  p50 / p95 quiet ${times(quiet)}, meanwhile ${times(flooded)}, 2 s later ${times(after)}
  p95 against quiet: ${ratio(flooded)} meanwhile, ${ratio(after)} 2 s later; ${flooded.failed} failed; ${memory} MB resident at most so far; ${cpu} % of a CPU
  the attacker was responded ${JSON.stringify(told)}`);
  }
  await api.stop();
  await db.close();
  await drop();
  await stopServers();
  process.exit();
}

interface Sample {
  readonly p50: number;
  readonly p95: number;
  readonly failed: number;
}

async function sample(port: string, apiKey: string, seconds: number): Promise<Sample> {
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  const times: number[] = [];
  let failed = 0;
  const until = performance.now() + seconds * 1000;
  while (performance.now() < until) {
    const begun = performance.now();
    if ((await get(port, apiKey, agent)) !== 200) failed += 1;
    times.push(performance.now() - begun);
    await delay(10);
  }
  agent.destroy();
  times.sort((a, b) => a - b);
  const at = (share: number) => times[Math.floor(times.length * share)] ?? Number.NaN;
  return { p50: at(0.5), p95: at(0.95), failed };
}

function get(port: string, apiKey: string, agent: Agent): Promise<number> {
  return new Promise((resolve) => {
    const headers = { 'x-api-key': apiKey };
    request(
      { agent, host: '127.0.0.1', port, path: '/api/v1/credits', headers },
      (response) => {
        response.resume().on('end', () => resolve(response.statusCode ?? 0));
      },
    )
      .on('error', () => resolve(0))
      .end();
  });
}

function peakMb(pid: number): number {
  const [, kb] = /VmHWM:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8')) ?? [];
  return Math.round(Number(kb) / 1024);
}

/** Returns the user and system time of a process in milliseconds. A tick is 10 ms. */
function cpuMs(pid: number): number {
  const [user, system] =
    readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]?.split(' ').slice(11, 13) ??
    [];
  return (Number(user) + Number(system)) * 10;
}

async function end(child: ChildProcess): Promise<void> {
  const ended = new Promise((resolve) => child.once('exit', resolve));
  child.kill('SIGKILL');
  await ended;
}

function open(port: number): Socket {
  return connect(port, '127.0.0.1').on('error', () => {});
}

/** Sends the whole text at once, and again when it has been sent, closed, or refused. */
function pipeline(port: number, text: string): void {
  open(port)
    .on('connect', function send(this: Socket) {
      this.write(text);
    })
    .on('close', () => setTimeout(pipeline, 100, port, text))
    .on('data', note);
}

/** Counts the responses that begin in a chunk by status, and returns their number. */
function note(chunk: Buffer): number {
  const statuses = chunk.toString('latin1').match(/(?<=HTTP\/1\.1 )\d+/g) ?? [];
  for (const status of statuses) responded[status] = (responded[status] ?? 0) + 1;
  return statuses.length;
}

/** Opens this many connections. Each sends the text again once its responses have arrived. */
function repeatedly(port: number, connections: number, text: string): void {
  const asked = text.split('GET').length - 1;
  const begin = () => {
    let replies = asked;
    const socket = open(port);
    const send = () => {
      replies = 0;
      socket.write(text);
    };
    socket.on('connect', send);
    socket.on('data', (chunk) => {
      replies += note(chunk);
      if (replies >= asked) send();
    });
    socket.on('close', () => setImmediate(begin));
  };
  for (let i = 0; i < connections; i += 1) begin();
}

async function bulk(port: number, apiKey: string, index: number): Promise<void> {
  const npis = Array.from(
    { length: 60 },
    (_, i) => `1${String(index * 60 + i).padStart(9, '0')}`,
  );
  const headers = { 'x-api-key': apiKey, 'content-type': 'application/json' };
  const reply = await fetch(`http://127.0.0.1:${port}/api/v1/email/bulk`, {
    method: 'POST',
    headers,
    body: JSON.stringify({ npis }),
  });
  await reply.text();
  responded[reply.status] = (responded[reply.status] ?? 0) + 1;
}
