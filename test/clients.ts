import { execFile } from 'node:child_process';
import { cp, symlink, writeFile } from 'node:fs/promises';
import { basename, delimiter, dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { run } from '../deploy/local/processes.ts';
import { temporaryFolder } from './support/database.ts';
import { program } from './support/documented/examples.ts';
import { runCheck, step } from './support/long-check.ts';
import { installPackage } from './support/python.ts';
import { startServers } from './support/servers.ts';
import { openapi } from './support/site.ts';
import { type Stack, startStack } from './support/stack.ts';
import { TOOLS } from './support/tools.ts';

/**
 * `npm run clients`: Redocly and Spectral lint the OpenAPI document, generators make clients from
 * it, and the programs in `test/clients/` are compiled with these clients and our Python package, and
 * use them against the whole service. The run ends at the first warning, with the output of the tool.
 */
const FOLDER = fileURLToPath(new URL('./clients/', import.meta.url));
/** Turns off update checks and telemetry of the tools. */
const QUIET = {
  CI: 'true',
  NO_COLOR: '1',
  REDOCLY_TELEMETRY: 'off',
  REDOCLY_SUPPRESS_UPDATE_NOTICE: 'true',
};
const PYTHON_CLIENTS = 'generated/python';
/** The programs that use our Python package, and the first of them from a page in `api/docs/`. */
const DOCUMENTED = 'enrich.py';
const OF_PACKAGE = [DOCUMENTED, 'by_package.py', 'package_types.py'];
/** The program that needs Go. */
const OF_GO = 'by_ogen';

/**
 * The programs that use a client, and the commands that make these clients: one generator each for
 * TypeScript, Python, and Go.
 */
const CLIENTS: readonly (readonly [program: string, generator: string])[] = [
  ['by-hey-api.ts', 'openapi-ts --file openapi-ts.config.mjs'],
  [
    'by_openapi_python_client.py',
    `python -m openapi_python_client generate --path openapi.json --fail-on-warning --meta none --output-path ${PYTHON_CLIENTS}/enrichment`,
  ],
  [
    OF_GO,
    'go tool ogen --target generated/ogen --package ogen --config ogen.yml openapi.json',
  ],
];

await runCheck(async (started) => {
  const [packages, python] = [await TOOLS.clientPackages(), await TOOLS.clientPython()];
  const hasGo = (await run('go', ['version'])).code === 0;
  if (!hasGo) console.log(`without Go on PATH, left out: ${OF_GO}`);
  const clients = CLIENTS.filter(([program]) => hasGo || program !== OF_GO);
  const programs = [...clients.map(([program]) => program), ...OF_PACKAGE];

  const folder = temporaryFolder((remove) => started.defer(remove));
  const isTaken = (file: string) =>
    basename(file) !== 'node_modules' && (hasGo || basename(file) !== OF_GO);
  await cp(FOLDER, folder, { recursive: true, filter: isTaken });
  await symlink(packages, join(folder, 'node_modules'));
  await writeFile(join(folder, 'openapi.json'), JSON.stringify(openapi));
  await writeFile(join(folder, DOCUMENTED), program(DOCUMENTED));
  const path = [join(packages, '.bin'), dirname(python), process.env.PATH].join(
    delimiter,
  );
  const type = typingIn(folder, { ...process.env, ...QUIET, PATH: path });

  await type('redocly lint openapi.json --config redocly.yaml');
  await type('spectral lint openapi.json --ruleset spectral.yaml --fail-severity hint');
  for (const [, generator] of clients) await type(generator);
  await type('tsc --project .');
  // A program must start at once, while one of its keys is over the rate limit.
  if (hasGo) await type(`go build -o compiled/${OF_GO} ./${OF_GO}`);

  started.defer(await startServers());
  const stack = await startStack();
  started.defer(stack.stop);
  await step('our package for Python', () =>
    installPackage(python, stack.baseUrl, folder),
  );
  await type('python -m mypy --strict --package npi_email_enrichment');
  const scripts = programs.filter((program) => program.endsWith('.py')).join(' ');
  await type(`python -m mypy --strict --follow-imports silent ${scripts}`, {
    MYPYPATH: PYTHON_CLIENTS,
  });
  for (const one of programs) {
    const access = await accessTo(stack);
    await type(commandOf(one), { ...access, PYTHONPATH: PYTHON_CLIENTS });
  }
  console.log(`${clients.length} generated clients and our Python package work`);
});

/** Returns the command that runs a program. */
function commandOf(program: string): string {
  if (program.endsWith('.py')) return `python ${program}`;
  if (program.endsWith('.ts')) return `node compiled/${program.replace('.ts', '.js')}`;
  return `compiled/${program}`;
}

/** Runs commands in a folder, prints the time of each, and fails with their output if they fail. */
function typingIn(cwd: string, environment: NodeJS.ProcessEnv) {
  return (line: string, env: NodeJS.ProcessEnv = {}): Promise<void> =>
    step(line, async () => {
      const [command = '', ...args] = line.split(' ');
      const options = {
        cwd,
        env: { ...environment, ...env },
        maxBuffer: 64 * 1024 * 1024,
      };
      await promisify(execFile)(command, args, options).catch(
        ({ stdout, stderr, code }) => {
          throw new Error(
            `${stdout}${stderr}\n${command} failed (${code}); the document is made in api/openapi/`,
          );
        },
      );
    });
}

/**
 * Returns the environment of a program: keys of organizations with credits, without, and over the
 * rate limit.
 */
async function accessTo(stack: Stack): Promise<NodeJS.ProcessEnv> {
  const [usual, poor, busy] = [
    await stack.organization(10),
    await stack.organization(0),
    await stack.organization(0, 1),
  ];
  await busy.credits();
  return {
    ...{ BASE_URL: stack.baseUrl, WEBHOOK_URL: stack.receiver.url },
    ...{ NPI_EMAIL_URL: stack.baseUrl, NPI_EMAIL_API_KEY: usual.apiKey },
    ...{ API_KEY: usual.apiKey, POOR_KEY: poor.apiKey, BUSY_KEY: busy.apiKey },
  };
}
