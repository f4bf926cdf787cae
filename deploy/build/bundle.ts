import { writeFile } from 'node:fs/promises';
import { main } from '../main.ts';
import { versionOf } from '../temporal/versions.ts';
import { bundleWorkflows } from '../temporal/workers.ts';

// `npm run bundle` writes the bundle of the workflows into a file. Without such a file, each worker
// bundles the workflows when it starts.

const HELP = `
A worker starts seconds faster if WORKFLOW_BUNDLE names the file, and every worker runs the same workflows.
Run it for each release, with the same sources as the worker.

Needs no settings.

Exit codes: 0 written, 1 failed (one sentence on stderr), 2 wrong usage.`;

await main(
  {
    name: 'bundle',
    description: 'Writes the bundle of the workflows into a file.',
    help: HELP,
  },
  async (_stopped, file: string) => {
    const { code } = await bundleWorkflows();
    await writeFile(file, code);
    const { buildId } = versionOf('', code);
    console.log(`bundle: build ${buildId}; start workers with WORKFLOW_BUNDLE=${file}`);
  },
  (command) => command.argument('[FILE]', 'where to write it', 'workflow-bundle.js'),
);
