import { type Command, CommanderError } from 'commander';
import { type Database, openDatabase } from '../db/connection/client.ts';
import { Refusal } from '../db/connection/errors.ts';
import {
  fallBackToLocalStack,
  LOCAL_STACK,
  loadOperatorConfig,
  type OperatorConfig,
  serviceVersion,
} from './config/config.ts';
import { addHelp, commandLine } from './main.ts';
import { nameOrganizations } from './operator/arguments.ts';
import { commandsOf, helpTexts } from './operator/help.ts';
import {
  type CommandSurroundings,
  printed,
  type Report,
  type Run,
} from './operator/print.ts';
import { printableLines } from './printable.ts';
import { codeOf, explain } from './problem.ts';

// `npm run operator -- COMMAND` runs the commands for operators of the service.

const DESCRIPTION =
  'Manages organizations, keys, credits, limits, and webhooks of the email enrichment service.';

/**
 * The top-level commands in each file. Only the file of the given command is loaded, because most
 * of a command's time is spent on loading code.
 */
const FILES: Readonly<Record<string, () => Promise<{ addCommands: AddCommands }>>> = {
  'org organization limits webhook-secret usage credits keys audit': () =>
    import('./operator/accounts.ts'),
  status: () => import('./operator/status.ts'),
  backups: () => import('./operator/backups.ts'),
  batch: () => import('./operator/batch.ts'),
  doctor: () => import('./operator/doctor.ts'),
  explain: () => import('./operator/explain.ts'),
  'vendors lookups': () => import('./operator/vendors.ts'),
  'webhooks deliveries': () => import('./operator/webhooks.ts'),
  import: () => import('./operator/import.ts'),
  'suppress privacy': () => import('./operator/privacy.ts'),
};

type AddCommands = (
  program: Command,
  run: Run,
  surroundings: CommandSurroundings,
) => void;

export interface OperatorSurroundings {
  /**
   * Loads the configuration. Only commands that need the database call it. @throws {ConfigError}
   */
  readonly config: () => OperatorConfig;
  readonly stdout: (text: string) => void;
  readonly stderr: (text: string) => void;
}

type ExitCode = 0 | 1 | 2 | 3;

/**
 * Returns the loader of the file that contains the given command. Returns the loaders of all files
 * if no command is given or no command has this name.
 */
function filesFor(args: readonly string[]) {
  const name = args.find((arg) => !arg.startsWith('-'));
  if (name === undefined) return Object.values(FILES);
  const named = Object.entries(FILES).filter(([names]) =>
    names.split(' ').includes(name),
  );
  if (named.length === 0) return Object.values(FILES);
  return named.map(([, load]) => load);
}

/**
 * Runs one operator command.
 * @param args the command line after the program's name
 * @returns the exit code: 0 for success, 1 if the command failed (with one sentence on stderr), 2
 * for wrong usage, 3 if `status` or `doctor` has findings
 */
export async function runOperator(
  args: readonly string[],
  { config, ...streams }: OperatorSurroundings,
): Promise<ExitCode> {
  const { stdout, stderr } = escaping(streams);
  const database = new CommandDatabase(config);
  const isJson = args.includes('--json');
  const done: { exitCode: ExitCode } = { exitCode: 0 };
  let work: 'reading' | 'changing' = 'reading';
  // With --json, an error is printed below, in place of the parser's text.
  const program = createProgram(stdout, isJson ? () => {} : stderr);
  program.hook('preAction', async (_, command) => {
    const { reason, reveal, dryRun } = command.opts();
    // Each change has a reason, for the audit log.
    if (reason && !reveal && !dryRun) work = 'changing';
    await nameOrganizations(command, () => database.open());
  });
  const run: Run = async (work) => {
    const report = reportOf(await work(database.open()));
    done.exitCode = report.exitCode ?? 0;
    stdout(printed(report, program.opts().json === true));
  };
  await addAllCommands(program, args, run, {
    databaseUrl: () => config().databaseUrl,
    output: { line: stderr },
  });
  addHelpTexts(program);
  try {
    await program.parseAsync(args, { from: 'user' });
    return done.exitCode;
  } catch (error) {
    if (error instanceof CommanderError) {
      if (error.exitCode === 0) return 0;
      // Without --json, the parser has already printed the error.
      if (isJson) stderr(errorLine('usage', usageOf(error)));
      return 2;
    }
    const message = explain(error, args, database.url, work);
    stderr(isJson ? errorLine(codeOf(error), message) : `operator: ${message}\n`);
    // `key_leaked` means that the option --yes is missing, which is wrong usage. Only the database
    // can show that this key needs the option, so the check is not part of the parsing.
    return error instanceof Refusal && error.code === 'key_leaked' ? 2 : 1;
  } finally {
    await database.close();
  }
}

type Streams = Pick<OperatorSurroundings, 'stdout' | 'stderr'>;

/** Escapes all output, because it may contain file names, vendors' texts, and other untrusted text. */
function escaping({ stdout, stderr }: Streams): Streams {
  return {
    stdout: (text) => stdout(printableLines(text)),
    stderr: (text) => stderr(printableLines(text)),
  };
}

/** Returns an error as a line of JSON, for `--json`. */
function errorLine(code: string, message: string): string {
  return `${JSON.stringify({ error: { code, message } })}\n`;
}

/** Returns what is wrong with the command line. */
function usageOf({ code, message }: CommanderError): string {
  if (code === 'commander.help') {
    return 'give a command; --help lists them';
  }
  return message.replace(/^error: /, '');
}

function createProgram(
  stdout: (text: string) => void,
  stderr: (text: string) => void,
): Command {
  return commandLine({ name: 'operator', description: DESCRIPTION })
    .option('--json', 'print one JSON document on stdout, and an error as JSON on stderr')
    .version(serviceVersion(), '--version', 'print the version')
    .configureHelp({ showGlobalOptions: true })
    .configureOutput({ writeOut: stdout, writeErr: stderr });
}

async function addAllCommands(
  program: Command,
  args: readonly string[],
  run: Run,
  surroundings: CommandSurroundings,
): Promise<void> {
  for (const load of filesFor(args)) {
    const { addCommands } = await load();
    addCommands(program, run, surroundings);
  }
}

/** Adds the texts of help.txt to the `--help` of the program and its commands. */
function addHelpTexts(program: Command): void {
  const texts = helpTexts();
  for (const [words, command] of commandsOf(program)) {
    const text = texts.get(words);
    if (text !== undefined) addHelp(command, text);
  }
}

/** The database of a command, which is opened when the command first needs it. */
class CommandDatabase {
  readonly #config: () => OperatorConfig;
  #opened: Database | null = null;
  /** The URL of the database, or null until it is opened. */
  url: string | null = null;

  constructor(config: () => OperatorConfig) {
    this.#config = config;
  }

  /** @throws {ConfigError} */
  open(): Database {
    if (this.#opened) return this.#opened;
    const { databaseUrl: url, secretKeys } = this.#config();
    this.url = url;
    this.#opened = openDatabase({
      url,
      poolSize: 1,
      applicationName: 'operator',
      secretKeys,
    });
    return this.#opened;
  }

  async close(): Promise<void> {
    await this.#opened?.close();
  }
}

function reportOf(result: object): Report {
  if ('data' in result) return result as Report;
  return { data: result };
}

if (import.meta.main) {
  // `operator … | head` closes the pipe early, which isn't an error.
  process.stdout.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code !== 'EPIPE') throw error;
  });

  void runOperator(process.argv.slice(2), {
    config: () => {
      if (fallBackToLocalStack()) {
        const notice = `DATABASE_URL is not set, so this uses the local stack (${LOCAL_STACK})`;
        process.stderr.write(`operator: ${notice}\n`);
      }
      return loadOperatorConfig();
    },
    stdout: (text) => process.stdout.write(text),
    stderr: (text) => process.stderr.write(text),
  }).then((code) => {
    process.exitCode = code;
  });
}
