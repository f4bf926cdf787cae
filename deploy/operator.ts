import { Command, CommanderError } from 'commander';
import { type Database, openDatabase } from '../db/client.ts';
import { loadOperatorConfig } from './config.ts';
import { addAuditCommands } from './operator-audit.ts';
import { addBatchCommands } from './operator-batch.ts';
import { addCreditCommands } from './operator-credits.ts';
import { addKeyCommands } from './operator-keys.ts';
import { addOrganizationCommands } from './operator-organizations.ts';
import { json, type Report } from './operator-print.ts';
import { explain } from './operator-problem.ts';

// `npm run operator -- …`: what operators do for organizations. Exit codes: 0; 1 where it failed; 2 for bad usage.

const HELP = `
Changes need --reason TEXT; who, what and why go to the audit log, in the same transaction as the change.
Needs DATABASE_URL (of the local stack: database_url in .local/stack.json). Exit codes: 0 done, 1 failed (one sentence on stderr), 2 wrong usage.

Examples:
  npm run operator -- org create "Acme Health" --reason "contract 2041"
  npm run operator -- credits grant org_01h2xcejqtf2nbrexx3vqjhp41 1000 --reason "invoice 17"
  npm run operator -- keys issue org_01h2xcejqtf2nbrexx3vqjhp41 --name production --reason "first key"
  npm run operator -- keys rotate key_01h2xcejqtf2nbrexx3vqjhp41 --overlap 1h --reason "yearly"
  npm run --silent operator -- --json org list    (--silent: npm prints nothing of its own on stdout)`;

const program = new Command('npm run operator --')
  .description('Organizations, keys, credits, limits and webhooks of the email enrichment service.')
  .option('--json', 'print one JSON document on stdout and nothing else')
  .addHelpText('after', HELP)
  .configureHelp({ showGlobalOptions: true })
  .showHelpAfterError('Add --help to see how it is used.')
  .exitOverride();

addOrganizationCommands(program, run);
addCreditCommands(program, run);
addKeyCommands(program, run);
addBatchCommands(program, run);
addAuditCommands(program, run);

// `operator … | head` closes the pipe early, which is no failure of ours.
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code !== 'EPIPE') throw error;
});

try {
  await program.parseAsync();
} catch (error) {
  if (!(error instanceof CommanderError)) throw error;
  process.exitCode = error.exitCode === 0 ? 0 : 2;
}

async function run(subject: string | null, work: (db: Database) => Promise<Report>): Promise<void> {
  let databaseUrl: string | null = null;
  try {
    ({ databaseUrl } = loadOperatorConfig());
    const db = openDatabase({ url: databaseUrl, poolSize: 1, applicationName: 'operator' });
    try {
      const { data, text } = await work(db);
      process.stdout.write(`${program.opts().json ? json(data) : text}\n`);
    } finally {
      await db.close();
    }
  } catch (error) {
    if (error instanceof CommanderError) throw error;
    console.error(`operator: ${explain(error, subject, databaseUrl)}`);
    process.exitCode = 1;
  }
}
