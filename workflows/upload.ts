import {
  CancellationScope,
  continueAsNew,
  isCancellation,
  setCurrentDetails,
  setWorkflowOptions,
  workflowInfo,
} from '@temporalio/workflow';
import type { UploadInput } from './messages.ts';
import { local, submitNextPart, upgrading } from './options.ts';

/**
 * Submits a file of the console part after part, each as one batch. All facts are in PostgreSQL, so
 * an upload whose workflow was terminated continues where it stopped, and so does a new run. Canceling
 * the workflow stops the upload.
 */
export async function submitUpload({ uploadId }: UploadInput): Promise<void> {
  try {
    let step = await submitNextPart({ uploadId });
    while (step.kind === 'submitted') {
      setCurrentDetails(`**${step.submitted} of ${step.parts}** parts submitted`);
      if (workflowInfo().continueAsNewSuggested && !isCanceled()) {
        await continueAsNew<typeof submitUpload>({ uploadId });
      }
      step = await submitNextPart({ uploadId });
    }
  } catch (error) {
    if (!isCancellation(error)) throw error;
    await CancellationScope.nonCancellable(() => local.stopUpload({ uploadId }));
    throw error;
  }
}

setWorkflowOptions(upgrading, submitUpload);

/**
 * Returns true if the workflow was canceled while its activity succeeded. The next activity then
 * throws, but a new run would not know about the cancellation.
 */
function isCanceled(): boolean {
  return CancellationScope.current().consideredCancelled;
}
