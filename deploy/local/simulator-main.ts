import { InvalidArgumentError } from 'commander';
import { main } from '../main.ts';
import { integer } from '../operator/arguments.ts';
import { startDns } from './dns.ts';
import { MAGIC, SITUATIONS } from './sim/magic.ts';
import { baseUrls, createSimulator } from './simulator.ts';

// `npm run simulator`: the simulated vendors alone.

const HELP = `
They listen on 127.0.0.1. Each speaks its real wire format below its own base URL, which is printed at the start.
Beside them runs the name server that knows the simulated people's domains.
Exit codes: 0 ended by a signal, 1 failed (one sentence on stderr), 2 wrong usage.

Base URLs:
${Object.values(baseUrls('  http://127.0.0.1:PORT')).join('\n')}

Magic NPIs:
${magicNpis('  ')}

RocketReach answers any other NPI by its digits. The others are asked by name and employer, and know the people of the
sample of NPPES. At all but RocketReach, somebody called Simulator by last name is answered as their first name says,
whatever the employer:
${SITUATIONS.map((name) => `  ${name}`).join('\n')}`;

function magicNpis(indent: string): string {
  return Array.from(MAGIC, ([npi, { shows }]) => `${indent}${npi}  ${shows}`).join('\n');
}

interface Options {
  readonly port: number;
  readonly dnsPort: number;
  readonly speed: number;
  readonly apiKey: string;
}

await main(
  { name: 'simulator', description: 'Simulated vendors, verifiers and NPI registry.', help: HELP },
  async (stopped, { port, dnsPort, speed, apiKey }: Options) => {
    const simulator = await createSimulator({ port, speed, apiKey });
    const dns = await startDns({ port: dnsPort });
    for (const [id, url] of Object.entries(simulator.urls)) console.log(`${id.toUpperCase()}_URL=${url}`);
    console.log(`DNS_SERVERS=${dns.address}\nThe key of every vendor: ${apiKey}\n\n${magicNpis('')}\n`);
    console.log('Any other NPI is answered by its digits. Ctrl-C stops it.');
    await stopped;
    await Promise.all([simulator.close(), dns.close()]);
  },
  (command) =>
    command
      .option('--port <PORT>', 'port of the vendors, 0 for any free one', integer(0, 65_535), 8090)
      .option(
        '--dns-port <PORT>',
        'UDP port of the name server, 0 for any free one',
        integer(0, 65_535),
        8053,
      )
      .option('--speed <FACTOR>', 'divides every latency: 60 makes a minute a second', parseSpeed, 1)
      .option('--api-key <KEY>', 'the key that callers must send, whatever the vendor', 'simulator'),
);

function parseSpeed(text: string): number {
  const speed = /^[0-9]{1,5}(\.[0-9]+)?$/.test(text) ? Number(text) : Number.NaN;
  if (speed >= 0.01 && speed <= 10_000) return speed;
  throw new InvalidArgumentError('Write a number from 0.01 to 10000.');
}
