import { parseArgs } from 'node:util';
import { startDns } from './dns.ts';
import { LocalProblem } from './problem.ts';
import { SITUATIONS } from './sim/findings.ts';
import { MAGIC } from './sim/magic.ts';
import { baseUrls } from './sim/vendors.ts';
import { createSimulator } from './simulator.ts';

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
  return Array.from(MAGIC, ([npi, { about }]) => `${indent}${npi}  ${about}`).join('\n');
}

interface Arguments {
  readonly port: number;
  readonly dnsPort: number;
  readonly speed: number;
  readonly apiKey: string;
}

/** @throws {LocalProblem} `bad_argument` */
function parseArguments(): Arguments | 'help' {
  const { values } = parseArgs({
    options: {
      port: { type: 'string', default: '8090' },
      'dns-port': { type: 'string', default: '8053' },
      speed: { type: 'string', default: '1' },
      'api-key': { type: 'string', default: 'simulator' },
      help: { type: 'boolean', default: false },
    },
  });
  if (values.help) return 'help';
  return {
    port: number('--port', values.port, 0, 65_535),
    dnsPort: number('--dns-port', values['dns-port'], 0, 65_535),
    speed: number('--speed', values.speed, 0.01, 10_000),
    apiKey: values['api-key'],
  };
}

function number(option: string, text: string, least: number, most: number): number {
  const value = Number(text);
  const whole = option === '--speed' || Number.isInteger(value);
  if (/^[0-9.]+$/.test(text) && whole && value >= least && value <= most) return value;
  throw new LocalProblem('bad_argument', `${option} must be a number from ${least} to ${most}; see --help.`);
}

async function run({ port, dnsPort, speed, apiKey }: Arguments): Promise<void> {
  const simulator = await createSimulator({ port, speed, apiKey });
  const dns = await startDns({ port: dnsPort });
  for (const [id, url] of Object.entries(simulator.urls)) console.log(`${id.toUpperCase()}_URL=${url}`);
  console.log(`DNS_SERVERS=${dns.address}\nThe key of every vendor: ${apiKey}\n\n${magicNpis('')}\n`);
  console.log('Any other NPI is answered by its digits. Ctrl-C stops it.');
  for (const signal of ['SIGINT', 'SIGTERM'] as const) {
    process.once(signal, () => void Promise.all([simulator.close(), dns.close()]));
  }
}

try {
  const parsed = parseArguments();
  if (parsed === 'help') console.log(HELP);
  else await run(parsed);
} catch (error) {
  // One sentence for the person at the terminal: a taken port, or an option that parseArgs or we refuse.
  console.error(error instanceof Error ? error.message : error);
  process.exit(1);
}
