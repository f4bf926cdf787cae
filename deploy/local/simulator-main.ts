import { parseArgs } from 'node:util';
import { startDns } from './dns.ts';
import { MAGIC } from './magic.ts';
import { LocalProblem } from './problem.ts';
import { createSimulator } from './simulator.ts';

const HELP = `npm run simulator -- [options]

Runs the simulated vendor, and the name server that knows the simulated people's domains, on 127.0.0.1.

  --port PORT      port of the vendor, 0 for any free one (8090)
  --dns-port PORT  UDP port of the name server, 0 for any free one (8053)
  --speed FACTOR   divides every latency: 60 makes a minute a second (1)
  --api-key KEY    the key that callers must send (simulator)
  --help           prints this
`;

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
  console.log(
    `ROCKETREACH_URL=${simulator.url}\nROCKETREACH_API_KEY=${apiKey}\nDNS_SERVERS=${dns.address}\n`,
  );
  for (const [npi, { about }] of MAGIC) console.log(`${npi}  ${about}`);
  console.log('\nAny other NPI is answered by its digits. Ctrl-C stops it.');
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
