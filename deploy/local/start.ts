import { join } from 'node:path';
import { loadLocalConfig } from '../config/config.ts';
import { type StackFacts, writeFacts } from '../config/stack-facts.ts';
import { main } from '../main.ts';
import { integer } from '../operator/arguments.ts';
import { printableLines } from '../printable.ts';
import { demonstrate } from './demo.ts';
import { type Stack, type StackOptions, startStack } from './stack.ts';

// `npm start` runs the whole service on this machine, and submits a demonstration batch through its
// API.

const HELP = `
It starts PostgreSQL, Temporal with its UI, simulated vendors, a webhook receiver, the
worker and the API, all on loopback; imports a sample of NPPES; submits a demonstration
batch; stays up until Ctrl-C.

DATABASE_URL (an empty database, or one of an earlier start) and TEMPORAL_ADDRESS replace
the stack's own servers. LOOKUP_TIMEOUT and the other settings of deploy/env.example are
honored, except the vendors' keys, URLs and files.

Exit codes: 0 ended by a signal, 1 failed (one sentence on stderr), 2 wrong usage.`;

interface Options extends Pick<StackOptions, 'dir'> {
  readonly demo: boolean;
  readonly port: number;
}

await main(
  {
    name: 'start',
    call: 'npm start --',
    description: 'The whole service on this machine.',
    help: HELP,
  },
  async (stopped, { dir, port: apiPort, demo: hasDemo }: Options) => {
    process.once('SIGHUP', () => process.kill(process.pid));
    const interruption = new AbortController();
    const interrupted = stopped.then(() => {
      console.log('\nstopping …');
      interruption.abort();
    });
    const { signal } = interruption;
    let stack: Stack | null = null;
    try {
      const given = loadLocalConfig();
      const say = (text: string) => console.log(printableLines(text));
      stack = await startStack({ dir, apiPort, given, say, signal });
      await writeFacts(dir, stack.facts);
      const demonstration = hasDemo ? demonstrate(stack.facts, say, signal) : null;
      const batchId =
        (await Promise.race([demonstration, stack.failed, interrupted])) ?? null;
      if (!signal.aborted) console.log(whatNext(stack, dir, batchId));
      await Promise.race([interrupted, stack.failed]);
    } catch (error) {
      // If the program is stopped while the stack is starting, steps of the start may fail. These
      // errors are not reported.
      if (!signal.aborted) throw error;
    } finally {
      await stack?.stop();
    }
  },
  (command) =>
    command
      .option('--no-demo', 'do not submit the demonstration batch')
      .option('--port <PORT>', "the API's port", integer(0, 65_535), 8080)
      .option('--dir <FOLDER>', 'where data, logs and stack.json are kept', '.local'),
);

/** Returns the text that is printed when the stack is running, with commands to try. */
function whatNext(
  { facts, lookupTimeout }: Stack,
  dir: string,
  batchId: string | null,
): string {
  const curl = 'curl -s -H "Authorization: Bearer $KEY"';
  const post = `${curl} -H 'Content-Type: application/json' $BASE/api/v1/email`;
  const pollBatch = batchId ? `  ${curl} $BASE/api/v1/batch/${batchId}\n` : '';
  const operator = operatorCommand(facts, dir);
  const cluster = `(of the cluster at ${facts.temporal_address}, namespace ${facts.temporal_namespace})`;
  return `
The service is up.  A lookup that finds nothing in time fails after ${lookupTimeout} here (15m in production).

  Temporal UI    ${facts.temporal_ui ?? cluster}
  Webhooks       ${facts.receiver_url}  (the received deliveries; use curl -k, because the certificate is self-signed)
  All of it      ${join(dir, 'stack.json')}   logs: ${join(dir, 'logs')}

Paste the address and the keys into another terminal:

BASE=${facts.base_url}
KEY=${facts.api_key}
TEST_KEY=${facts.test_api_key}

Then try:

  ${curl} $BASE/api/v1/credits
  ${post} -d '{"npi":"2000000036","enrichment_email_type":"personal"}'
  ${post} -d '{"npi":"2000000101"}'   # the vendor hangs: failed, refunded
  ${post.replace('$KEY', '$TEST_KEY')} -d '{"npi":"2000000010"}'   # in the sandbox: no vendor is called
${pollBatch}  curl -sk ${facts.receiver_url}
  ${operator} explain 2000000226   # the vendors that were called, and their results
  ${operator} vendors

Ctrl-C stops everything this started.`;
}

/**
 * Returns the command line of the operator command for this stack. Without DATABASE_URL, the
 * command only finds a stack in the folder `.local`.
 */
function operatorCommand(facts: StackFacts, dir: string): string {
  const command = 'npm run operator --';
  if (dir === '.local') return command;
  return `DATABASE_URL='${facts.database_url}' SECRETS_KEY='${facts.secrets_key}' ${command}`;
}
