import { on } from 'node:events';
import { Worker as Thread } from 'node:worker_threads';
import { ReplayError, Worker } from '@temporalio/worker';
import { pino } from 'pino';
import { OperatorProblem } from '../../db/connection/errors.ts';
import type { Run } from './history.ts';
import type { ChildMessage } from './replay-process.ts';
import { installRuntime, SOURCE_MAP } from './workers.ts';

// The child process that replays runs for `replayInChild`. The SDK detects when the code does not
// repeat the commands in a history.

/**
 * Ends this process when its parent has ended, even while a workflow loops. Only another thread can
 * do that.
 */
const GUARD = `
  const parent = ${process.ppid};
  setInterval(() => process.ppid === parent || process.kill(process.pid, 'SIGKILL'), 1000);
`;

new Thread(GUARD, { eval: true }).unref();
// This process reads no settings, so that only its parent reports a wrong one.
installRuntime(pino({ level: 'silent' }));
const messages = on(process, 'message');
const code = await next<string>();
send({ misfit: null, throws: false });
try {
  const workflowBundle = { code: bundleOf(code) };
  for await (const { error } of Worker.runReplayHistories({ workflowBundle }, runs())) {
    const misfit = error === undefined ? null : `does not fit: ${reasonOf(error)}`;
    send({ misfit, throws: error instanceof ReplayError });
  }
} catch (error) {
  if (error instanceof OperatorProblem) send({ problem: error.message });
  else send({ error: error as Error });
}

/** Returns the code to replay. @throws {OperatorProblem} if it is not a bundle of workflows */
function bundleOf(code: string): string {
  if (SOURCE_MAP.test(code)) return code;
  throw new OperatorProblem(
    'this file is not a bundle of workflows: "npm run bundle -- FILE" writes one',
  );
}

/** Returns the SDK's message without the protocol messages around it. */
function reasonOf({ message }: Error): string {
  return /message: "((?:[^"\\]|\\.)*)"/.exec(message)?.[1] ?? message;
}

async function* runs(): AsyncGenerator<Run> {
  for (;;) yield await next<Run>();
}

async function next<Message>(): Promise<Message> {
  const { value } = await messages.next();
  return value?.[0];
}

function send(message: ChildMessage): void {
  process.send?.(message);
}
