import { fileURLToPath } from 'node:url';
import { parseOptions, portOf, runCommand, secretOf } from './command-line.ts';
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

await runCommand(async () => {
  const values = parseOptions({
    port: { type: 'string', default: '8443' },
    secret: { type: 'string' },
    help: { type: 'boolean', default: false },
  });
  if (values.help) {
    console.log(USAGE);
    return;
  }
  const receiver = await startReceiver({
    port: portOf('--port', values.port),
    secret: secretOf(values.secret),
    dir: CERTIFICATE_FOLDER,
    onDelivery: (delivery) => console.log(lineOf(delivery)),
  });
  console.log(`receiver on ${receiver.url}, certificate ${receiver.caFile}`);
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => void receiver.close());
});

function lineOf({ at, verified, id, path, body }: ReceivedDelivery): string {
  return `${at} ${verified ? 'verified  ' : 'unverified'} ${id || '-'} ${path} ${Buffer.byteLength(body)} bytes`;
}
