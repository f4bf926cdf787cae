import { parseOptions, portOf, runCommand, usage } from './command-line.ts';
import { startDns } from './dns.ts';
import { MAGIC, SITUATIONS } from './sim/magic.ts';
import { baseUrls, createSimulator } from './simulator.ts';

const HELP = `npm run simulator -- [options]

Runs the simulated vendors, verifiers and NPI registry, and the name server that knows the simulated people's
domains, on 127.0.0.1. Each speaks its real wire format below its own base URL, which is printed at the start.

  --port PORT      port of the vendors, 0 for any free one (8090)
  --dns-port PORT  UDP port of the name server, 0 for any free one (8053)
  --speed FACTOR   divides every latency: 60 makes a minute a second (1)
  --api-key KEY    the key that callers must send, whatever the vendor (simulator)
  --help           prints this

Base URLs:
${Object.values(baseUrls('  http://127.0.0.1:PORT')).join('\n')}

Magic NPIs:
${magicNpis('  ')}

RocketReach answers any other NPI by its digits. The others are asked by name and employer, and know the people of the
sample of NPPES. At all but RocketReach, somebody called Simulator by last name is answered as their first name says,
whatever the employer:
  ${SITUATIONS.join(', ')}
`;

function magicNpis(indent: string): string {
  return Array.from(MAGIC, ([npi, { shows }]) => `${indent}${npi}  ${shows}`).join('\n');
}

await runCommand(async () => {
  const values = parseOptions({
    port: { type: 'string', default: '8090' },
    'dns-port': { type: 'string', default: '8053' },
    speed: { type: 'string', default: '1' },
    'api-key': { type: 'string', default: 'simulator' },
    help: { type: 'boolean', default: false },
  });
  if (values.help) {
    console.log(HELP);
    return;
  }
  const apiKey = values['api-key'];
  const dnsPort = portOf('--dns-port', values['dns-port']);
  const port = portOf('--port', values.port);
  const simulator = await createSimulator({ port, speed: speedOf(values.speed), apiKey });
  const dns = await startDns({ port: dnsPort });
  for (const [id, url] of Object.entries(simulator.urls)) console.log(`${id.toUpperCase()}_URL=${url}`);
  console.log(`DNS_SERVERS=${dns.address}\nThe key of every vendor: ${apiKey}\n\n${magicNpis('')}\n`);
  console.log('Any other NPI is answered by its digits. Ctrl-C stops it.');
  for (const signal of ['SIGINT', 'SIGTERM'] as const) {
    process.once(signal, () => void Promise.all([simulator.close(), dns.close()]));
  }
});

function speedOf(text: string): number {
  const speed = /^[0-9]{1,5}(\.[0-9]+)?$/.test(text) ? Number(text) : Number.NaN;
  if (speed >= 0.01 && speed <= 10_000) return speed;
  throw usage('--speed must be a number from 0.01 to 10000.');
}
