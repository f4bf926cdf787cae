import { fallBackToLocalStack, LOCAL_STACK, loadOperatorConfig } from './config/config.ts';
import { runOperator } from './operator/program.ts';

// `npm run operator -- …`: what operators do for organizations.

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
