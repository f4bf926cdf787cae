import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { showWebhookSecret } from '../../db/accounts/webhook-secrets.ts';
import { openDatabase } from '../../db/client.ts';
import { DatabaseError } from '../../db/errors.ts';
import { parseOptions, portOf, runCommand, secretOf, usage } from './command-line.ts';
import { readFacts, type StackFacts } from './facts.ts';
import { type Forwarded, startForwarder } from './forwarder.ts';
import { LocalProblem } from './problem.ts';

// `npm run listen`: deliveries of the local stack, checked and sent on to a receiver that is being written.

const HELP = `npm run listen -- --forward-to URL [OPTIONS]

Receives deliveries of the local stack (npm start) on an https address that its worker trusts, checks the signature of
each, sends it on to your receiver as it came, and answers with your receiver's status. Prints one line per delivery:
time, webhook-id, NPIs, whether the signature is right, your receiver's status (502 where it gave none) and its time.

  --forward-to URL   your receiver, such as http://127.0.0.1:3000/hook
  --secret whsec_…   check with this one (default: the secret of the local stack's organization)
  --port PORT        where to listen on 127.0.0.1 (default 8444; 0 for any that is free)
  --dir FOLDER       the --dir of npm start (default .local)
  --help             this text

Then submit with the address it prints: {"npi":"2000000010","webhook":{"url":"https://127.0.0.1:8444/"}}
`;

/** Long enough for a stack that is busy; a stack that is down refuses at once. */
const HEALTH_TIMEOUT_MS = 5000;

await runCommand(async () => {
  const options = parseOptions({
    'forward-to': { type: 'string' },
    secret: { type: 'string' },
    port: { type: 'string', default: '8444' },
    dir: { type: 'string', default: '.local' },
    help: { type: 'boolean', default: false },
  });
  if (options.help) {
    console.log(HELP);
    return;
  }
  const target = targetOf(options['forward-to']);
  const port = portOf('--port', options.port);
  const given = secretOf(options.secret);
  const facts = await factsOf(options.dir);
  const forwarder = await startForwarder({
    port,
    certificate: await certificateOf(options.dir),
    secret: given ?? (await stackSecret(facts)),
    target,
    onDelivery: (forwarded) => console.log(lineOf(forwarded)),
  });
  console.log(`${forwarder.url} → ${target.href}`);
  console.log(`Give the first as webhook.url in submits to ${facts.base_url}. Ctrl-C ends it.`);
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => void forwarder.close());
});

function targetOf(text: string | undefined): URL {
  const target = URL.parse(text ?? '');
  if (target !== null && ['http:', 'https:'].includes(target.protocol)) return target;
  throw usage('Give --forward-to and the URL of your receiver, such as http://127.0.0.1:3000/hook.');
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

/** That of the stack's own receiver, which the stack's worker trusts on every port of loopback. */
async function certificateOf(dir: string): Promise<{ readonly cert: string; readonly key: string }> {
  const folder = join(dir, 'receiver');
  try {
    const [cert, key] = await Promise.all(
      ['cert.pem', 'key.pem'].map((name) => readFile(join(folder, name), 'utf8')),
    );
    return { cert: cert ?? '', key: key ?? '' };
  } catch {
    throw new LocalProblem(
      'no_stack',
      `There is no certificate in ${folder}: start the local stack with npm start.`,
    );
  }
}

async function stackSecret({ database_url: url, organization_id: id }: StackFacts): Promise<string> {
  const db = openDatabase({ url, poolSize: 1, applicationName: 'listen' });
  try {
    return (await showWebhookSecret(db, id)).webhookSecret;
  } catch (error) {
    if (!(error instanceof DatabaseError)) throw error;
    const message = `The local stack's database does not give the webhook secret (${error.code}): give --secret.`;
    throw new LocalProblem('no_stack', message);
  } finally {
    await db.close();
  }
}

function lineOf({ at, id, npis, problem, status, ms }: Forwarded): string {
  const told = npis === null ? 'no envelope' : npis === 1 ? '1 NPI' : `${npis} NPIs`;
  const answer = status === null ? '502 (no answer from your receiver)' : `${status}`;
  const checked = problem === null ? 'verified' : `NOT VERIFIED: ${problem}`;
  return `${at.toISOString()} ${id || '(no webhook-id)'}  ${told}  → ${answer} in ${ms} ms  ${checked}`;
}
