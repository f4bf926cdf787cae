import { type Database, openDatabase } from '../db/client.ts';
import { Refusal } from '../db/errors.ts';
import {
  fallBackToLocalStack,
  LOCAL_STACK,
  loadOperatorConfig,
  type OperatorConfig,
} from './config/config.ts';
import { commandLine, readCommandLine } from './main.ts';
import {
  addAuditCommands,
  addCreditCommands,
  addKeyCommands,
  addOrganizationCommands,
} from './operator/accounts.ts';
import { addBatchCommands } from './operator/batch.ts';
import { addDoctorCommand } from './operator/doctor.ts';
import { addExplainCommands } from './operator/explain.ts';
import { addImportCommands } from './operator/import.ts';
import { isReport, json, plain } from './operator/print.ts';
import { addPrivacyCommands, addSuppressCommands } from './operator/privacy.ts';
import { addVendorCommands } from './operator/vendors.ts';
import { addWebhookCommands } from './operator/webhooks.ts';
import { explain } from './problem.ts';

// `npm run operator -- …`: what operators do for organizations.

const DESCRIPTION = 'Organizations, keys, credits, limits and webhooks of the email enrichment service.';

const HELP = `
Changes, and looks at what is secret or personal, need --reason TEXT; who, what and why go to the audit log, in the same
transaction as the change. An address may be given as -, which reads it from stdin: others see command lines, shells
keep them.
Needs DATABASE_URL, and SECRETS_KEY for what makes or shows a webhook secret; without DATABASE_URL the local stack that was
started in this folder is meant. See "Configuration" in README.md.
Exit codes: 0 done, 1 failed (one sentence on stderr), 2 wrong usage, 3 doctor or audit verify has findings.

Examples:
  npm run operator -- org create "Acme Health" --reason "contract 2041"
  npm run operator -- credits grant org_01h2xcejqtf2nbrexx3vqjhp41 1000 --reason "invoice 17"
  npm run operator -- keys issue org_01h2xcejqtf2nbrexx3vqjhp41 --name production --reason "first key"
  npm run operator -- keys rotate key_01h2xcejqtf2nbrexx3vqjhp41 --overlap 1h --reason "yearly"
  npm run operator -- doctor
  npm run operator -- import nppes NPPES_Data_Dissemination_September_2026_V2.zip
  npm run operator -- explain req_01h2xcejqtf2nbrexx3vqjhp41
  npm run operator -- vendors --since 7d
  npm run operator -- webhooks resend --failed --organization org_01h2xcejqtf2nbrexx3vqjhp41 --since 24h --reason "receiver is back"
  npm run operator -- import suppressions opt-outs.csv --verdicts opt-outs.verdicts.csv
  npm run operator -- privacy erase 2000000010 --yes --reason "ticket 93"
  npm run --silent operator -- --json org list    (--silent: npm prints nothing of its own on stdout)`;

export interface OperatorSurroundings {
  /** Asked only by commands that need the database. @throws {ConfigError} */
  readonly config: () => OperatorConfig;
  readonly stdout: (text: string) => void;
  readonly stderr: (text: string) => void;
  /** Where progress may be drawn; none without it. */
  readonly terminal?: NodeJS.WriteStream;
}

/**
 * Runs one operator command.
 * @param args the command line after the program's name
 * @returns the exit code: 0; 1 if it failed, with one sentence on stderr; 2 for wrong usage; 3 for findings
 */
export async function runOperator(
  args: readonly string[],
  { config, stdout, stderr, terminal }: OperatorSurroundings,
): Promise<0 | 1 | 2 | 3> {
  let exitCode: 0 | 1 | 2 | 3 = 0;
  const program = commandLine({ name: 'operator', description: DESCRIPTION, help: HELP })
    .option('--json', 'print one JSON document on stdout and nothing else')
    .configureHelp({ showGlobalOptions: true })
    .configureOutput({ writeOut: stdout, writeErr: stderr });
  addOrganizationCommands(program, run);
  addCreditCommands(program, run);
  addKeyCommands(program, run);
  addBatchCommands(program, run);
  addAuditCommands(program, run);
  addDoctorCommand(program, run);
  addImportCommands(program, run, {
    databaseUrl: () => config().databaseUrl,
    output: { terminal: terminal ?? null, line: stderr },
  });
  addExplainCommands(program, run);
  addVendorCommands(program, run);
  addWebhookCommands(program, run, stderr);
  addSuppressCommands(program, run);
  addPrivacyCommands(program, run);

  return (await readCommandLine(program, args)) ?? exitCode;

  async function run(work: (db: Database) => Promise<object>): Promise<void> {
    let url: string | null = null;
    try {
      const { databaseUrl, secretKeys } = config();
      url = databaseUrl;
      const db = openDatabase({ url, poolSize: 1, applicationName: 'operator', secretKeys });
      try {
        const said = await work(db);
        const report = isReport(said) ? said : plain(said);
        exitCode = report.exitCode ?? 0;
        stdout(`${program.opts().json ? json(report.data) : report.text}\n`);
      } finally {
        await db.close();
      }
    } catch (error) {
      // Refused for want of --yes: wrong usage, though only the database could tell.
      exitCode = error instanceof Refusal && error.code === 'key_leaked' ? 2 : 1;
      stderr(`operator: ${explain(error, args, url)}\n`);
    }
  }
}

if (import.meta.main) {
  // `operator … | head` closes the pipe early, which isn't a failure of ours.
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
    ...(process.stderr.isTTY ? { terminal: process.stderr } : {}),
  });
}
