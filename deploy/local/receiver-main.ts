import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { type ReceivedDelivery, startReceiver } from './receiver.ts';

const CERTIFICATE_FOLDER = fileURLToPath(new URL('../../.local/receiver', import.meta.url));
const USAGE = `Usage: node deploy/local/receiver-main.ts [--port 8443] [--secret whsec_…]

A webhook receiver on https://127.0.0.1:PORT with a self-made certificate. Prints each delivery as one line:
time, whether its signature is right, webhook-id, path, size.

  --port    where to listen (default 8443; 0 for any that is free)
  --secret  the organization's webhook secret; without it no signature can be verified
  --help    this text

POST /any/path        answered with 200
POST /status/CODE     answered with CODE
POST /fail/N/any      answered with 500 the first N times for each webhook-id, then with 200
GET  /                all that arrived, as JSON, newest last`;

try {
  await main();
} catch (error) {
  console.error(error instanceof Error ? error.message : error);
  console.error('See --help.');
  process.exitCode = 1;
}

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      port: { type: 'string', default: '8443' },
      secret: { type: 'string' },
      help: { type: 'boolean', default: false },
    },
  });
  if (values.help) {
    console.log(USAGE);
    return;
  }
  const receiver = await startReceiver({
    port: portOf(values.port),
    secret: secretOf(values.secret),
    dir: CERTIFICATE_FOLDER,
    onDelivery: (delivery) => console.log(lineOf(delivery)),
  });
  console.log(`receiver on ${receiver.url}, certificate ${receiver.caFile}`);
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => void receiver.close());
}

function portOf(text: string): number {
  const port = /^[0-9]{1,5}$/.test(text) ? Number(text) : Number.NaN;
  if (port <= 65_535) return port;
  throw new Error('--port must be a number from 0 to 65535.');
}

function secretOf(text: string | undefined): string | undefined {
  if (text === undefined || /^whsec_[A-Za-z0-9+/]+={0,2}$/.test(text)) return text;
  throw new Error('--secret must be whsec_ followed by base64, as the operator command shows it.');
}

function lineOf({ at, verified, id, path, body }: ReceivedDelivery): string {
  return `${at} ${verified ? 'verified  ' : 'unverified'} ${id || '-'} ${path} ${Buffer.byteLength(body)} bytes`;
}
