import { type Command, Option } from 'commander';
import { printableLines } from '../api/client/printable.ts';
import { type Database, openDatabase } from '../db/client.ts';
import { Refusal } from '../db/errors.ts';
import manifest from '../package.json' with { type: 'json' };
import {
  fallBackToLocalStack,
  LOCAL_STACK,
  loadOperatorConfig,
  type OperatorConfig,
} from './config/config.ts';
import { commandLine, readCommandLine } from './main.ts';
import { nameOrganizations } from './operator/arguments.ts';
import { addCompletionCommand, commandsOf, helpTexts } from './operator/help.ts';
import { type CommandSurroundings, printed, type Report, type Run } from './operator/print.ts';
import { explain } from './problem.ts';

// `npm run operator -- …` runs the commands of operators.

const DESCRIPTION =
  'Organizations, keys, credits, limits and webhooks of the email enrichment service.';

/**
 * The commands in each file. Only the file of the given command is loaded, because loading takes
 * most of a command's time.
 */
const FILES: Readonly<Record<string, () => Promise<{ addCommands: AddCommands }>>> = {
  'org organization limits webhook-secret usage credits keys audit': () =>
    import('./operator/accounts.ts'),
  status: () => import('./operator/status.ts'),
  batch: () => import('./operator/batch.ts'),
  doctor: () => import('./operator/doctor.ts'),
  explain: () => import('./operator/explain.ts'),
  'vendors lookups': () => import('./operator/vendors.ts'),
  webhooks: () => import('./operator/webhooks.ts'),
  import: () => import('./operator/import.ts'),
  'suppress privacy': () => import('./operator/privacy.ts'),
};

type AddCommands = (program: Command, run: Run, surroundings: CommandSurroundings) => void;

export interface OperatorSurroundings {
  /** Called only by commands that need the database. @throws {ConfigError} */
  readonly config: () => OperatorConfig;
  readonly stdout: (text: string) => void;
  readonly stderr: (text: string) => void;
}

/**
 * Runs one operator command.
 * @param args the command line after the program's name
 * @returns the exit code: 0; 1 if it failed, with one sentence on stderr; 2 for wrong usage; 3 for
 * findings
 */
export async function runOperator(
  args: readonly string[],
  { config, ...streams }: OperatorSurroundings,
): Promise<0 | 1 | 2 | 3> {
  // Escapes all output, because it may contain file names, vendors' texts, and other untrusted
  // text.
  const stdout = (text: string) => streams.stdout(printableLines(text));
  const stderr = (text: string) => streams.stderr(printableLines(text));
  const help = helpTexts();
  const program = commandLine({
    name: 'operator',
    description: DESCRIPTION,
    help: help.get('operator') ?? '',
  })
    .option('--json', 'print one JSON document on stdout and nothing else')
    .addOption(new Option('--csv', 'print a table, or a record, as CSV').conflicts('json'))
    .version(manifest.version, '--version', 'print the version')
    .configureHelp({ showGlobalOptions: true })
    .configureOutput({ writeOut: stdout, writeErr: stderr })
    .hook('preAction', (_, command) => nameOrganizations(command, database));
  const name = args.find((arg) => arg !== '--json' && arg !== '--csv') ?? '';
  const files = Object.entries(FILES);
  const asked = files.filter(([names]) => names.split(' ').includes(name));
  const surroundings = {
    databaseUrl: () => config().databaseUrl,
    output: { line: stderr },
  };
  for (const [, load] of asked.length > 0 ? asked : files) {
    (await load()).addCommands(program, run, surroundings);
  }
  addCompletionCommand(program, stdout);
  for (const [words, command] of commandsOf(program).slice(1))
    command.addHelpText('after', help.get(words) ?? '');

  let exitCode: 0 | 1 | 2 | 3 = 0;
  let opened: Database | null = null;
  let url: string | null = null;
  try {
    return (await readCommandLine(program, args)) ?? exitCode;
  } catch (error) {
    stderr(`operator: ${explain(error, args, url)}\n`);
    // Missing --yes is wrong usage, even if only the database could find that out.
    return error instanceof Refusal && error.code === 'key_leaked' ? 2 : 1;
  } finally {
    await (opened as Database | null)?.close();
  }

  function database(): Database {
    if (opened) return opened;
    const { databaseUrl, secretKeys } = config();
    url = databaseUrl;
    opened = openDatabase({ url, poolSize: 1, applicationName: 'operator', secretKeys });
    return opened;
  }

  async function run(work: (db: Database) => Promise<object>): Promise<void> {
    const said = await work(database());
    const report = 'data' in said ? (said as Report) : { data: said };
    exitCode = report.exitCode ?? 0;
    stdout(`${printed(report, program.opts())}\n`);
  }
}

if (import.meta.main) {
  // `operator … | head` closes the pipe early, which isn't an error.
  process.stdout.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code !== 'EPIPE') throw error;
  });

  process.exitCode = await runOperator(process.argv.slice(2), {
    config: () => {
      if (fallBackToLocalStack()) {
        process.stderr.write(
          `operator: DATABASE_URL is not set, so the local stack is meant (${LOCAL_STACK})\n`,
        );
      }
      return loadOperatorConfig();
    },
    stdout: (text) => process.stdout.write(text),
    stderr: (text) => process.stderr.write(text),
  });
}
