import type { IncomingMessage, ServerResponse } from 'node:http';
import { createServer } from 'node:https';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { InvalidArgumentError } from 'commander';
import { printable } from '../../api/client/printable.ts';
import { OperatorProblem } from '../../db/errors.ts';
import { main } from '../main.ts';
import { integer } from '../operator/arguments.ts';
import { signatureProblem } from './check-signature.ts';
import { readFacts, type StackFacts } from './facts.ts';
import { LOOPBACK, listenOn } from './processes.ts';
import { ensureCertificate } from './receiver.ts';

// `npm run listen` checks deliveries of the local stack and forwards them to a receiver under
// development.

const HELP = `
It takes them from npm start on an https address that its worker trusts, checks the signature of each, sends it on as
it came, and answers with your receiver's status. It prints one line per delivery: time, webhook-id, NPIs, whether the
signature is right, your receiver's status (502 if it gave none) and its time.

Then submit with the address it prints: {"npi":"2000000010","webhook":{"url":"https://127.0.0.1:8444/"}}
Exit codes: 0 ended by a signal, 1 failed (one sentence on stderr), 2 wrong usage.`;

interface Options {
  readonly forwardTo: URL;
  readonly port: number;
  readonly dir: string;
}

/** Long enough for a busy stack. A stack that is down refuses the connection at once. */
const HEALTH_TIMEOUT_MS = 5000;

async function listen(stopped: Promise<void>, { forwardTo, port, dir }: Options): Promise<void> {
  const { base_url: baseUrl, webhook_secrets: secrets } = await factsOf(dir);
  // The certificate of the stack's own receiver, which the stack's worker trusts on every port of
  // loopback.
  const { cert, key } = await ensureCertificate(join(dir, 'receiver'));
  const server = createServer({ cert, key }, (request, response) => {
    void receive(request, response, forwardTo, secrets).catch(() => response.destroy());
  });
  const listening = await listenOn(server, port, 'npm run listen', '--port');
  console.log(`https://${LOOPBACK}:${listening.port}/ → ${forwardTo.href}`);
  console.log(`Give the first as webhook.url in submits to ${baseUrl}. Ctrl-C ends it.`);
  await stopped;
  await listening.close();
}

function parseTarget(text: string): URL {
  const target = URL.parse(text);
  if (target !== null && ['http:', 'https:'].includes(target.protocol)) return target;
  throw new InvalidArgumentError(
    'Write the URL of your receiver, such as http://127.0.0.1:3000/hook.',
  );
}

/**
 * Returns the facts that the stack wrote when it started. @throws {OperatorProblem} if it is not
 * running
 */
async function factsOf(dir: string): Promise<StackFacts> {
  const facts = readFacts(dir);
  const signal = AbortSignal.timeout(HEALTH_TIMEOUT_MS);
  const health = facts && (await fetch(`${facts.base_url}/healthz`, { signal }).catch(() => null));
  if (facts && health?.ok) return facts;
  const what = facts
    ? `The local stack does not answer at ${facts.base_url}: start it with npm start.`
    : `There is no ${join(dir, 'stack.json')}: start the local stack with npm start, and name its --dir.`;
  throw new OperatorProblem(what);
}

/** The sender gives up after 15 s, connecting included (DECISIONS.md, Webhooks, transport). */
const TARGET_TIMEOUT_MS = 15_000;
/**
 * Headers of a delivery that are forwarded. The others belong to its connection, or the next
 * connection sets them again (RFC 9110, 7.6.1).
 */
const HEADERS = /^(?:webhook-.*|content-type|user-agent)$/;

/**
 * Checks a delivery and forwards it unchanged, even if the signature is wrong. Returns the target's
 * status, `Retry-After` and body to the sender, so that retries can be tested.
 */
async function receive(
  request: IncomingMessage,
  response: ServerResponse,
  target: URL,
  secrets: readonly string[],
): Promise<void> {
  const at = new Date();
  const body = await buffer(request);
  const sent = Object.entries(request.headers).filter(([name]) => HEADERS.test(name));
  const headers = Object.fromEntries(sent) as Record<string, string>;
  const problem = signatureProblem(headers, body, secrets, at);
  const begun = performance.now();
  const answer = await fetch(target, {
    method: 'POST',
    headers,
    body: new Uint8Array(body),
    redirect: 'manual',
    signal: AbortSignal.timeout(TARGET_TIMEOUT_MS),
  })
    .then(async (answer) => ({ answer, text: Buffer.from(await answer.arrayBuffer()) }))
    .catch(() => null);
  const ms = Math.round(performance.now() - begun);
  const retryAfter = answer?.answer.headers.get('retry-after');
  const text = answer?.text ?? `no answer from ${target.host}\n`;
  response
    .writeHead(answer?.answer.status ?? 502, retryAfter ? { 'retry-after': retryAfter } : {})
    .end(text);
  const said = answer?.answer.status ?? '502 (no answer from your receiver)';
  const id = headers['webhook-id'] || '(no webhook-id)';
  const verified = problem ? `NOT VERIFIED: ${problem}` : 'verified';
  console.log(
    printable(`${at.toISOString()} ${id}  ${npisOf(body)}  → ${said} in ${ms} ms  ${verified}`),
  );
}

/** Returns the number of NPIs in a delivery, as text. */
function npisOf(body: Buffer): string {
  try {
    const { length } = (JSON.parse(body.toString('utf8')) as { data: unknown[] }).data;
    return length === 1 ? '1 NPI' : `${length} NPIs`;
  } catch {
    return 'no envelope';
  }
}

// Comes last, after every constant above is set.
await main(
  {
    name: 'listen',
    description: 'Sends deliveries of the local stack on to your receiver.',
    help: HELP,
  },
  listen,
  (command) =>
    command
      .requiredOption(
        '--forward-to <URL>',
        'your receiver, such as http://127.0.0.1:3000/hook',
        parseTarget,
      )
      .option(
        '--port <PORT>',
        'where to listen on 127.0.0.1, 0 for any free one',
        integer(0, 65_535),
        8444,
      )
      .option('--dir <FOLDER>', 'the --dir of npm start', '.local'),
);
