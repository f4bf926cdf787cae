import type { IncomingMessage, ServerResponse } from 'node:http';
import { createServer } from 'node:https';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { InvalidArgumentError } from 'commander';
import { showWebhookSecret } from '../../db/accounts/webhook-secrets.ts';
import { openDatabase } from '../../db/client.ts';
import { DatabaseError, Refusal } from '../../db/errors.ts';
import { loadOperatorConfig } from '../config/config.ts';
import { main } from '../main.ts';
import { integer } from '../operator/arguments.ts';
import { addSecret, signatureProblem } from './check-signature.ts';
import { readFacts, type StackFacts } from './facts.ts';
import { LOOPBACK, LocalProblem, listenOn } from './processes.ts';
import { ensureCertificate } from './receiver.ts';

// `npm run listen`: deliveries of the local stack, checked and sent on to a receiver that is being written.

const HELP = `
It takes them from npm start on an https address that its worker trusts, checks the signature of each, sends it on as
it came, and answers with your receiver's status. It prints one line per delivery: time, webhook-id, NPIs, whether the
signature is right, your receiver's status (502 if it gave none) and its time.

Then submit with the address it prints: {"npi":"2000000010","webhook":{"url":"https://127.0.0.1:8444/"}}
Exit codes: 0 ended by a signal, 1 failed (one sentence on stderr), 2 wrong usage.`;

interface Options {
  readonly forwardTo: URL;
  readonly secret?: string;
  readonly port: number;
  readonly dir: string;
}

/** Long enough for a stack that is busy; a stack that is down refuses at once. */
const HEALTH_TIMEOUT_MS = 5000;

async function listen(stopped: Promise<void>, { forwardTo, secret, port, dir }: Options): Promise<void> {
  const facts = await factsOf(dir);
  const signedWith = secret ? [secret] : await stackSecrets(facts);
  // That of the stack's own receiver, which the stack's worker trusts on every port of loopback.
  const { cert, key } = await ensureCertificate(join(dir, 'receiver'));
  const server = createServer({ cert, key }, (request, response) => {
    void receive(request, response, forwardTo, signedWith).catch(() => response.destroy());
  });
  const listening = await listenOn(server, port, 'npm run listen', '--port');
  console.log(`https://${LOOPBACK}:${listening.port}/ → ${forwardTo.href}`);
  console.log(`Give the first as webhook.url in submits to ${facts.base_url}. Ctrl-C ends it.`);
  await stopped;
  await listening.close();
}

function parseTarget(text: string): URL {
  const target = URL.parse(text);
  if (target !== null && ['http:', 'https:'].includes(target.protocol)) return target;
  throw new InvalidArgumentError('Write the URL of your receiver, such as http://127.0.0.1:3000/hook.');
}

/** What the stack wrote when it started, if it still runs. */
async function factsOf(dir: string): Promise<StackFacts> {
  const facts = readFacts(dir);
  if (facts === null) {
    throw new LocalProblem(
      'no_stack',
      `There is no ${join(dir, 'stack.json')}: start the local stack with npm start, and name its --dir.`,
    );
  }
  const signal = AbortSignal.timeout(HEALTH_TIMEOUT_MS);
  const health = await fetch(`${facts.base_url}/healthz`, { signal }).catch(() => null);
  if (health?.ok) return facts;
  throw new LocalProblem(
    'no_stack',
    `The local stack does not answer at ${facts.base_url}: start it with npm start.`,
  );
}

/** Of the stack's organization and of its sandbox. */
async function stackSecrets(facts: StackFacts): Promise<string[]> {
  const { database_url: url, secrets_key: SECRETS_KEY } = facts;
  const { secretKeys } = loadOperatorConfig({ DATABASE_URL: url, SECRETS_KEY });
  const db = openDatabase({ url, poolSize: 1, applicationName: 'listen', secretKeys });
  try {
    const shown = [facts.organization_id, facts.sandbox_id].map((id) => showWebhookSecret(db, id));
    return (await Promise.all(shown)).map(({ webhookSecret }) => webhookSecret);
  } catch (error) {
    if (!(error instanceof DatabaseError || error instanceof Refusal)) throw error;
    const message = `The local stack's database does not give the webhook secret (${error.code}): give --secret.`;
    throw new LocalProblem('no_stack', message);
  } finally {
    await db.close();
  }
}

/** The sender gives up after 15 s, connecting included (DECISIONS.md, Webhooks, transport). */
const TARGET_TIMEOUT_MS = 15_000;
/** Of one connection, not of the message (RFC 9110, 7.6.1), or set anew by the request that is made. */
const OWN_HEADERS: ReadonlySet<string> = new Set([
  'connection',
  'content-length',
  'expect',
  'host',
  'keep-alive',
  'transfer-encoding',
]);

/**
 * Checks a delivery, and sends it on as it came, right or not: body to the byte, headers, and the target's status,
 * `Retry-After` and body back, so that retries can be tried.
 */
async function receive(
  request: IncomingMessage,
  response: ServerResponse,
  target: URL,
  secrets: readonly string[],
): Promise<void> {
  if (request.method !== 'POST') {
    response.writeHead(405, { allow: 'POST' }).end();
    return;
  }
  const at = new Date();
  const body = await buffer(request);
  const headers = textHeaders(request);
  const problems = secrets.map((secret) => signatureProblem(headers, body, secret, at));
  const problem = problems.includes(null) ? null : (problems[0] ?? null);
  const begun = performance.now();
  const status = await sendOn(target, headers, body, response);
  const ms = Math.round(performance.now() - begun);
  const npis = npisOf(body);
  const told = npis === null ? 'no envelope' : npis === 1 ? '1 NPI' : `${npis} NPIs`;
  const answer = status ?? '502 (no answer from your receiver)';
  const checked = problem === null ? 'verified' : `NOT VERIFIED: ${problem}`;
  const id = headers['webhook-id'] || '(no webhook-id)';
  console.log(`${at.toISOString()} ${id}  ${told}  → ${answer} in ${ms} ms  ${checked}`);
}

/** @returns the target's status; null, with 502 as the answer, if it gave none */
async function sendOn(
  target: URL,
  headers: Readonly<Record<string, string>>,
  body: Buffer,
  response: ServerResponse,
): Promise<number | null> {
  try {
    const answer = await fetch(target, {
      method: 'POST',
      headers: Object.fromEntries(Object.entries(headers).filter(([name]) => !OWN_HEADERS.has(name))),
      body: new Uint8Array(body),
      redirect: 'manual',
      signal: AbortSignal.timeout(TARGET_TIMEOUT_MS),
    });
    const text = Buffer.from(await answer.arrayBuffer());
    const retryAfter = answer.headers.get('retry-after');
    response.writeHead(answer.status, retryAfter === null ? {} : { 'retry-after': retryAfter }).end(text);
    return answer.status;
  } catch {
    response.writeHead(502).end(`no answer from ${target.host}\n`);
    return null;
  }
}

function textHeaders({ headers }: IncomingMessage): Record<string, string> {
  return Object.fromEntries(Object.entries(headers).map(([name, value]) => [name, String(value)]));
}

/** How many NPIs a delivery tells of; null if the body isn't an envelope. */
function npisOf(body: Buffer): number | null {
  try {
    const { data } = JSON.parse(body.toString('utf8')) as { data?: unknown };
    return Array.isArray(data) ? data.length : null;
  } catch {
    return null;
  }
}

// Last, when every constant above is set.
await main(
  { name: 'listen', description: 'Sends deliveries of the local stack on to your receiver.', help: HELP },
  listen,
  (command) => {
    command
      .requiredOption('--forward-to <URL>', 'your receiver, such as http://127.0.0.1:3000/hook', parseTarget)
      .option('--port <PORT>', 'where to listen on 127.0.0.1, 0 for any free one', integer(0, 65_535), 8444)
      .option('--dir <FOLDER>', 'the --dir of npm start', '.local');
    addSecret(command, "check with this one (default: the local stack's, its sandbox's too)");
  },
);
