import { asyncLocalStorage } from '@temporalio/activity';
import { type DestinationStream, type Logger, pino, stdSerializers } from 'pino';
import { printableLines } from '../api/client/printable.ts';
import { traceOfLine } from '../db/traces.ts';
import { temporalUi } from './config/config.ts';

/**
 * Returns a logger that writes JSON lines.
 *
 * Callers log ids and numbers. Errors keep only type, code and stack frames, because a message may
 * contain user data. A line written inside an activity has the ids of its workflow, which are those
 * of the request, batch or delivery. A line about a batch has the ids of its trace, if traces are
 * on. If TEMPORAL_UI_URL is set, a line about a workflow has its link to the Temporal UI.
 * @param destination replaces standard output
 */
export function createLog(name: string, level: string, destination?: DestinationStream): Logger {
  const ui = temporalUi();
  const options = {
    name,
    level,
    serializers: { err: serializeError },
    base: { pid: process.pid },
    mixin: idsOfLine,
    formatters: ui === null ? {} : linkingTo(ui),
    // Logs are read in terminals, so control characters are escaped. The line stays JSON with the
    // same value.
    hooks: { streamWrite: printableLines },
  };
  if (destination === undefined) return pino(options);
  return pino(options, destination);
}

/** Returns formatters that add to a line the link of its workflow in the Temporal UI. */
function linkingTo(ui: string) {
  const log = (line: Record<string, unknown>) => {
    // The id of a batch is also the id of its workflow.
    const id = line.workflow_id ?? line.batch_id;
    if (!id) return line;
    return { ...line, temporal: `${ui}/${id}` };
  };
  return { log };
}

function idsOfLine(line: object) {
  const run = asyncLocalStorage.getStore()?.info.workflowExecution;
  if (!run) return traceOfLine(line);
  return { workflow_id: run.workflowId, run_id: run.runId, ...traceOfLine(line) };
}

function serializeError(error: unknown) {
  if (!(error instanceof Error)) return { type: typeof error };
  const { type, stack } = stdSerializers.err(error);
  const frames = stack.split('\n').filter((line) => line.trimStart().startsWith('at '));
  // A gRPC failure has its code on its cause.
  const code = codeOf(error) ?? codeOf(error.cause);
  if (code === undefined) return { type, stack: frames.join('\n') };
  return { type, code, stack: frames.join('\n') };
}

function codeOf(error: unknown): string | number | undefined {
  if (!(error instanceof Error) || !('code' in error)) return undefined;
  const { code } = error;
  return typeof code === 'string' || typeof code === 'number' ? code : undefined;
}
